"""Reads and checks records that have a file, as their dataclasses declare (`ddpsim.common.documents.fields`).

Start at `read_as`. `_schema` translates a field's type and marks to a schema of pydantic-core, which checks a whole
file and collects all problems; that is its only use, records are plain dataclasses. Types are strict (no text for a
number, no bool for a count) and numbers finite. Unknown keys are ignored, for a later version may have added
them, but for a record with `EXTRA = "forbid"`, which people write: there they are misspelt.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from pydantic_core import CoreSchema, SchemaValidator, ValidationError, core_schema

from ddpsim.common.documents.errors import document_error, format_value, join_errors, problems
from ddpsim.common.documents.fields import (
    MOST_ITEMS,
    AsColumns,
    AsRows,
    Bounds,
    ByName,
    Checked,
    OneOf,
    Parsed,
    fields_in_file,
    keys_of,
)
from ddpsim.common.errors import InputError

_PLAIN: Mapping[Any, Callable[..., CoreSchema]] = {
    int: functools.partial(core_schema.int_schema, strict=True),
    float: functools.partial(core_schema.float_schema, strict=True, allow_inf_nan=False),
    str: functools.partial(core_schema.str_schema, strict=True),
    bool: functools.partial(core_schema.bool_schema, strict=True),
}


Read = TypeVar("Read")


def read_as(
    model: type[Read], document: object, place: str, error: type[InputError], remedy: str, text: str = ""
) -> Read:
    """Return `document` as `model`, a record of a file.

    Args:
        model: the record's class.
        document: parsed JSON or YAML.
        place: the file's name, for the message.
        error: what to raise where it is another's file, or anything in it is missing or of the wrong kind.
        remedy: what to do then, for the message.
        text: the YAML that the document is from, for lines in the message.

    Raises:
        InputError: as `error`, with `place`, and each problem with its keys: `parameters.3.shape: ...`.
    """
    if hasattr(model, "SCHEMA"):
        _check_schema(model, document, place, error, remedy)
    try:
        return cast(Read, _validator_of(cast(Any, model)).validate_python(document))
    except ValidationError as cause:
        from ddpsim.common.documents.yaml_reading import line_of

        lines = problems(cause, model, line=(lambda path: line_of(text, path)) if text else None)
        raise join_errors(lines, place, error, remedy) from cause
    except InputError as cause:
        within = place if cause.place is None else f"{place}: {cause.place}"
        raise error(cause.message, place=within, remedy=cause.remedy) from cause


class AsRecord:
    """Marks a field of a pydantic model that is a record."""

    def __get_pydantic_core_schema__(self, kind: Any, _: Any) -> CoreSchema:
        """Return the schema of the record; pydantic asks for it."""
        return _record_schema(kind)


def _check_schema(model: Any, document: object, place: str, error: type[InputError], remedy: str) -> None:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != model.SCHEMA:
        what = f"not a {model.KIND}" + ("" if schema is None else f": its schema is {format_value(schema)}")
        raise error(what, place=place, remedy=f'expected "schema": "{model.SCHEMA}"; {remedy}')


@functools.cache
def _validator_of(kind: Any) -> SchemaValidator:
    return SchemaValidator(_schema(kind))


def _schema(hint: Any, marks: tuple[Any, ...] = ()) -> CoreSchema:
    """Return pydantic's schema of a field's type, with its marks.

    A mark that replaces the type's own schema returns at once; `Checked` wraps that of the remaining marks; `Bounds`
    are collected and become arguments of the type's schema.
    """
    if get_origin(hint) is Annotated:
        return _schema(get_args(hint)[0], (*hint.__metadata__, *marks))
    inner = get_args(hint)
    for place, mark in enumerate(marks):
        match mark:
            case Parsed():
                return core_schema.no_info_plain_validator_function(_raise_as_pydantic(mark.read))
            case Checked():
                rest = _schema(hint, marks[:place] + marks[place + 1 :])
                return core_schema.no_info_after_validator_function(_raise_as_pydantic(mark.check), rest)
            case OneOf():
                return core_schema.literal_schema(list(mark.names))
            case AsColumns():
                return _columns_schema(inner[0])
            case AsRows():
                return _rows_schema(inner[0])
            case ByName():
                return core_schema.no_info_after_validator_function(_by_name, _tuple_schema((inner[1], ...), {}))
    bounds: dict[str, float] = {}
    for mark in marks:
        if isinstance(mark, Bounds):
            bounds |= {name: bound for name, bound in vars(mark).items() if bound is not None}
    return _schema_within(hint, marks, bounds)


def _schema_within(hint: Any, marks: tuple[Any, ...], bounds: Mapping[str, Any]) -> CoreSchema:
    """Return the schema of a type within bounds; `marks` are passed on to the X of `X | None`."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint](**bounds)
    if origin in (Union, types.UnionType):
        kinds = [each for each in inner if each is not types.NoneType]
        schema = _schema(kinds[0], marks) if len(kinds) == 1 else core_schema.union_schema([_schema(k) for k in kinds])
        return schema if len(kinds) == len(inner) else core_schema.nullable_schema(schema)
    if origin is tuple:
        return _tuple_schema(inner, bounds)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return core_schema.no_info_after_validator_function(hint, core_schema.literal_schema([*map(str, hint)]))
    if is_dataclass(hint):
        return _record_schema(hint)
    if origin is not None and issubclass(origin, Mapping):
        return core_schema.dict_schema(*map(_schema, inner), strict=True, **bounds)
    return core_schema.any_schema()


def _raise_as_pydantic(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `check` with its InputError converted, so that pydantic collects it with all others of the file."""

    def checked(value: Any) -> Any:
        try:
            return check(value)
        except InputError as error:
            keys = error.place.split(".") if error.place else []
            text = str(InputError(error.message, remedy=error.remedy))
            raise document_error(text, *(int(key) if key.isdigit() else key for key in keys)) from error

    return checked


def _by_name(records: tuple[Any, ...]) -> dict[str, Any]:
    return {each.name: each for each in records}


def _tuple_schema(inner: tuple[Any, ...], bounds: Mapping[str, Any]) -> CoreSchema:
    if inner[-1] is not Ellipsis:
        return core_schema.tuple_schema([_schema(each) for each in inner])
    # Bounded before items are checked: each wrong one is an error of a kilobyte.
    most = None if inner[0] is Any else MOST_ITEMS
    items = core_schema.list_schema(_schema(inner[0]), max_length=most, strict=True, **bounds)
    return core_schema.no_info_after_validator_function(tuple, items)


def _record_schema(kind: Any) -> CoreSchema:
    parts = []
    for each in fields_in_file(kind):
        schema = _schema(each.hint)
        if each.default is not MISSING and not each.key.stated:
            schema = _with_default(schema, each.field)
        alias: list[str | int] | None = [*each.key.path] or None
        parts.append(core_schema.dataclass_field(each.field.name, schema, kw_only=True, validation_alias=alias))
    known = {each.field.name for each in fields_in_file(kind)}
    for field in fields(kind):
        if field.name not in known:
            # A key of that name in the file is not this field: `init=False` keeps it out.
            schema = _with_default(core_schema.any_schema(), field)
            parts.append(core_schema.dataclass_field(field.name, schema, init=False))
    record = core_schema.dataclass_schema(
        kind,
        core_schema.dataclass_args_schema(kind.__name__, parts, extra_behavior=getattr(kind, "EXTRA", "ignore")),
        [field.name for field in fields(kind)],
        post_init=hasattr(kind, "__post_init__"),
        slots=hasattr(kind, "__slots__"),
    )
    # A dict alone: pydantic would take an object of the class too, and name the class where it expects one.
    return core_schema.chain_schema([core_schema.dict_schema(strict=True), record])


def _with_default(schema: CoreSchema, field: Field[Any]) -> CoreSchema:
    if field.default_factory is MISSING:
        return core_schema.with_default_schema(schema, default=field.default)
    return core_schema.with_default_schema(schema, default_factory=field.default_factory)


def _columns_schema(kind: Any) -> CoreSchema:
    """Return the schema of records that are written as columns, checked a column at a time, which is faster."""
    columns = {}
    for each in fields_in_file(kind):
        column: CoreSchema = core_schema.list_schema(_schema(each.hint), max_length=MOST_ITEMS, strict=True)
        if each.default is not MISSING and not each.key.stated:
            column = core_schema.nullable_schema(column)
        columns[each.field.name] = core_schema.typed_dict_field(column, required=column["type"] == "list")

    def join(read: dict[str, list[Any] | None]) -> tuple[Any, ...]:
        there = {name: column for name, column in read.items() if column is not None}
        if len({*map(len, there.values())}) > 1:
            raise document_error(f"columns of {', '.join(str(len(each)) for each in there.values())} entries")
        return tuple(kind(**dict(zip(there, row, strict=True))) for row in zip(*there.values(), strict=True))

    return core_schema.no_info_after_validator_function(join, core_schema.typed_dict_schema(columns))


def _rows_schema(kind: Any) -> CoreSchema:
    row = core_schema.tuple_schema([_schema(each.hint) for each in fields_in_file(kind)])
    rows = core_schema.list_schema(row, max_length=MOST_ITEMS, strict=True)
    names = keys_of(kind)

    def join(read: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        return tuple(kind(**dict(zip(names, each, strict=True))) for each in read)

    return core_schema.no_info_after_validator_function(join, rows)
