"""Declares and writes records that have a file: marks in a field's `Annotated` type, and `document_of`.

A dataclass is declared once, with bounds, keys and conversions of its fields: `Annotated[int, Bounds(ge=0), WRITTEN]`.
`document_of` writes it, `ddpsim.common.documents.records.read_as` reads and checks it. Nothing here imports a library:
a room without any can declare records, and a run that reads no file does not load pydantic.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from ddpsim.common.errors import InputError
from ddpsim.common.units import format_bandwidth, parse_bandwidth, parse_time

MOST_ITEMS = 200_000
"""Items of a list or mapping at most: parameters, buckets, operators; chosen by hand, no model has as many."""
_MOST = 1 << 63
"""No count, size or number of elements is as large."""
_LARGEST = 1e18
"""No time in seconds or size in bytes is larger."""
_PLAIN = (int, str, float)
"""Types of values that JSON has as they are."""
_ROUNDING = 1e-9
"""How far below 0 an amount may lie, in its unit: rounding of files leaves as much."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number, a length or a text, with the names and meanings that pydantic gives them."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    pattern: str | None = None
    strict: bool | None = None
    allow_inf_nan: bool | None = None


@dataclass(frozen=True)
class Checked:
    """The value, once read, goes through `check`, which returns it or a replacement.

    `check` raises InputError for a wrong value, its place relative to the field.
    """

    check: Callable[[Any], Any]


@dataclass(frozen=True)
class Parsed:
    """The JSON value is read by `read` alone, which raises as `Checked.check` does, and written by `write`."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


@dataclass(frozen=True)
class OneOf:
    """A text is one of these."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class AsColumns:
    """A tuple of records is written as an object with a list for each of their fields, all of one length.

    A field that the file may lack is left out where no record has another value than its default.
    """


@dataclass(frozen=True)
class AsRows:
    """A tuple of records is written as a list of lists, each with the values of a record's fields in their order."""


@dataclass(frozen=True)
class ByName:
    """A mapping of records by their `name` is written as a list of them."""


@dataclass(frozen=True)
class Key:
    """How a file writes a field."""

    path: tuple[str, ...] = ()
    """Nested keys to it; empty where the key is the field's name."""
    stated: bool = False
    """Whether the file must have it, though it has a default in Python."""
    written: bool = False
    """Whether its default is written too; a file may lack it."""


STATED, WRITTEN = Key(stated=True), Key(written=True)


class NotInFile:
    """Marks a field that no file has, set later in Python."""


def _check_amount(value: float) -> float:
    if value < -_ROUNDING:
        raise InputError(f"{value!r} is not a number from 0 on")
    return value


Bandwidth = Annotated[float, Parsed(parse_bandwidth, format_bandwidth)]
Time = Annotated[float, Parsed(parse_time, lambda seconds: f"{seconds!r}s")]
Text = Annotated[str, Bounds(min_length=1)]
Index = Annotated[int, Bounds(ge=0, lt=_MOST)]
Count = Annotated[int, Bounds(gt=0, lt=_MOST)]
Number = Annotated[float, Bounds(ge=-_LARGEST, le=_LARGEST)]
"""Seconds or bytes that arithmetic keeps finite."""
Amount = Annotated[Number, Checked(_check_amount)]
"""Seconds or bytes from 0 on, but for rounding."""


class InFile(NamedTuple):
    """A field that a file has, with its type hint, the marks in it and its key."""

    field: Field[Any]
    hint: Any
    marks: tuple[Any, ...]
    key: Key

    @property
    def path(self) -> tuple[str, ...]:
        """Keys to it in the file, one in another."""
        return self.key.path or (self.field.name,)

    @property
    def default(self) -> Any:
        """The default; MISSING where there is none."""
        return self.field.default if self.field.default_factory is MISSING else self.field.default_factory()


@functools.cache
def fields_in_file(kind: Any) -> tuple[InFile, ...]:
    """Return the fields of a record that a file has, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    listed = []
    for field in fields(kind):
        marks = marks_of(hints[field.name])
        if not any(mark is NotInFile for mark in marks):
            key = next((mark for mark in marks if isinstance(mark, Key)), Key())
            listed.append(InFile(field, hints[field.name], marks, key))
    return tuple(listed)


def marks_of(hint: Any) -> tuple[Any, ...]:
    """Return the marks in a type hint; of `X | None` those of X."""
    if get_origin(hint) is Annotated:
        return (*hint.__metadata__, *marks_of(get_args(hint)[0]))
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(mark for each in get_args(hint) for mark in marks_of(each))
    return ()


def document_of(record: Any) -> Any:
    """Return a record as JSON values; fields with their defaults are left out, but where `WRITTEN` or `STATED`."""
    if type(record) in _PLAIN:
        return record
    if isinstance(record, (tuple, list)):
        # A list of numbers may have as many as the model has parameters.
        return [each if type(each) in _PLAIN else document_of(each) for each in record]
    if isinstance(record, Mapping):
        return dict(record)
    if not is_dataclass(record):
        return str(record) if isinstance(record, StrEnum) else record
    kind: Any = type(record)
    document: dict[str, Any] = {"schema": kind.SCHEMA} if hasattr(kind, "SCHEMA") else {}
    for each in fields_in_file(kind):
        value = getattr(record, each.field.name)
        if not (each.key.stated or each.key.written) and type(value) is type(each.default) and value == each.default:
            continue
        place = document
        *above, last = each.path
        for key in above:
            place = place.setdefault(key, {})
        place[last] = _value_of(value, each.hint, each.marks)
    return document


def keys_of(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a record that a file has, in their order."""
    return tuple(each.field.name for each in fields_in_file(kind))


def _value_of(value: Any, hint: Any, marks: tuple[Any, ...]) -> Any:
    if value is None:
        return None
    for mark in marks:
        if isinstance(mark, Parsed):
            return mark.write(value)
        if isinstance(mark, AsColumns):
            return _columns_of(value, get_args(get_args(hint)[0])[0])
        if isinstance(mark, AsRows):
            return [[getattr(each, field.name) for field in fields(each)] for each in value]
        if isinstance(mark, ByName):
            return document_of(tuple(value.values()))
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(kind) is Mapping:
        inner = get_args(kind)[1]
        return {key: _value_of(each, inner, marks_of(inner)) for key, each in value.items()}
    return document_of(value)


def _columns_of(records: Sequence[Any], kind: Any) -> dict[str, list[Any]]:
    columns = {}
    for each in fields_in_file(kind):
        column = [getattr(record, each.field.name) for record in records]
        if each.key.stated or each.default is MISSING or any(value != each.default for value in column):
            columns[each.field.name] = document_of(column)
    return columns
