"""What all documents have in common: strict kinds, a schema of their own, and the kinds of numbers in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema

from ddpsim.documents.errors import document_error, format_value, join_errors, problems
from ddpsim.documents.records import validator_of
from ddpsim.errors import InputError, UnitError
from ddpsim.fields import MOST_ITEMS

_MOST = 1 << 63
"""No count, size or number of elements is as large."""
_LARGEST = 1e18
"""No time in seconds or size in bytes is larger."""
_ROUNDING = 1e-9
"""How far below 0 a time may lie, in seconds: rounding of files leaves as much."""


def _bound(schema: Any) -> None:
    """Give what holds items of a kind that is checked one by one `MOST_ITEMS` at most."""
    if isinstance(schema, dict):
        items = schema.get("items_schema", schema.get("values_schema"))
        if schema.get("type") in ("list", "dict") and items is not None and items["type"] != "any":
            schema.setdefault("max_length", MOST_ITEMS)
        for inner in schema.values():
            _bound(inner)
    elif isinstance(schema, list):
        for inner in schema:
            _bound(inner)


class Document(BaseModel):
    """The base of every object that a JSON file holds.

    Kinds are strict (no text for a number, no flag for a count), numbers finite. Keys that it does not know are left
    out: a later version may have added them.
    """

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Bound every list and mapping of it: each wrong item of one is an error of its own, of a kilobyte."""
        made = handler(source)
        _bound(made)
        return made


class File(Document):
    """The base of a whole JSON file, which names its schema.

    Attributes:
        SCHEMA: what its key `schema` holds.
        KIND: what it is, in words.
    """

    SCHEMA: ClassVar[str]
    KIND: ClassVar[str]


Read = TypeVar("Read")


def read_as(model: type[Read], document: object, place: str, error: type[InputError], remedy: str) -> Read:
    """Return `document` as `model`, a record or a `Document`.

    Args:
        model: what the document should be.
        document: parsed JSON.
        place: the file's name, for the message.
        error: what to raise where it is another's file, or anything in it is missing or of the wrong kind.
        remedy: what to do then, for the message.
    """
    if hasattr(model, "SCHEMA"):
        _check_schema(model, document, place, error, remedy)
    try:
        if issubclass(model, Document):
            return cast(Read, model.model_validate(document))
        return cast(Read, validator_of(cast(Any, model)).validate_python(document))
    except ValidationError as cause:
        raise join_errors(problems(cause, model), place, error, remedy) from cause
    except InputError as cause:
        within = place if cause.place is None else f"{place}: {cause.place}"
        raise error(cause.message, place=within, remedy=cause.remedy) from cause


def _check_schema(model: Any, document: object, place: str, error: type[InputError], remedy: str) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != model.SCHEMA:
        what = f"not a {model.KIND}" + ("" if schema is None else f": its schema is {format_value(schema)}")
        raise error(what, place=place, remedy=f'expected "schema": "{model.SCHEMA}"; {remedy}')


def _amount(value: float) -> float:
    if value < -_ROUNDING:
        raise document_error(f"{format_value(value)} is not a number from 0 on")
    return value


def quantity(parse: Callable[[object], float]) -> BeforeValidator:
    """Return what reads a number with its unit, as `ddpsim.units` has them."""

    def validate(value: object) -> object:
        try:
            return parse(value)
        except UnitError as error:
            raise document_error(str(error)) from error

    return BeforeValidator(validate)


Text = Annotated[str, Field(min_length=1)]
Index = Annotated[int, Field(ge=0, lt=_MOST)]
Count = Annotated[int, Field(gt=0, lt=_MOST)]
Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
"""Seconds or bytes that arithmetic keeps finite."""
Amount = Annotated[Number, AfterValidator(_amount)]
"""Seconds or bytes from 0 on, but for rounding."""
