"""Converts pydantic's validation errors to the project's own: each problem with its place in the file and its value."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BeforeValidator, ValidationError
from pydantic_core import PydanticCustomError

from ddpsim.common.documents.fields import fields_in_file
from ddpsim.common.errors import InputError, UnitError, UnknownNameError, join_problems, shorten

Path = tuple[str | int, ...]

_OWN_TYPE = "document_error"
"""pydantic's type of an error that a validator of ours raises, whose message stands as it is."""
_EXPECTED: Mapping[str, str] = {
    "string_type": "a text",
    "string_too_short": "a text with something in it",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number that a file holds",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object with keys",
    "model_type": "an object with keys",
    "model_attributes_type": "an object with keys",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number from {ge} on",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number up to {le}",
    "literal_error": "{expected}",
    "too_short": "long enough: {min_length} or more belong in it",
    "too_long": "short enough: {max_length} or fewer belong in it",
}
"""What the value is not, by pydantic's type of error; bounds are filled in from the model."""

_LONGEST_VALUE = 60
"""Characters of a wrong value that a message repeats; chosen by hand."""
_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxlong, _repr.maxother = 3, _LONGEST_VALUE, _LONGEST_VALUE, _LONGEST_VALUE


def document_error(what: str, *within: str | int) -> PydanticCustomError:
    """Return the error that a validator of a model raises; its message is `what` as it stands.

    Args:
        what: names the value and says what it should be.
        within: the keys from the validated value to the wrong one inside it.
    """
    return PydanticCustomError(_OWN_TYPE, "{text}", {"text": what, "within": within})


def problems(
    error: ValidationError,
    model: Any,
    *,
    under: Path = (),
    line: Callable[[Path], int | None] | None = None,
) -> list[str]:
    """Return each problem in `error` as `key.key: what is wrong`, in the order of the model.

    Args:
        error: what validation raised.
        model: the class that was validated, for the names near an unknown key.
        under: keys of the file to the validated value.
        line: returns the line, from 1, of the value at a path; given where people write the file by hand.
    """
    lines = []
    for entry in error.errors(include_url=False):
        path = _path(entry)
        number = line(path) if line else None
        where = ".".join(map(str, (*under, *path))) + (f" (line {number})" if number else "")
        lines.append(f"{where}: {_message(entry, path, model)}" if where else _message(entry, path, model))
    return lines


def join_errors(found: list[str], place: str, error: type[InputError], remedy: str | None = None) -> InputError:
    """Return the one `error` that says all problems in the file `place`; of many, the first."""
    return error(join_problems(found), place=place, remedy=remedy)


def format_value(value: object) -> str:
    """Return `value` as an error shows it: as Python writes it, shortened."""
    return shorten(_repr.repr(value), _LONGEST_VALUE)


def _path(entry: Any) -> Path:
    context = entry.get("ctx") or {}
    return (*(part for part in entry["loc"] if part != "[key]"), *context.get("within", ()))


def _message(entry: Any, path: Path, model: Any) -> str:
    kind, message = entry["type"], entry["msg"]
    if kind == _OWN_TYPE:
        return str(message)
    if kind == "missing":
        return "the key is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return str(UnknownNameError.among("key", str(path[-1]), _keys(model, path[:-1])))
    if kind == "value_error":
        return str(message).removeprefix("Value error, ")
    if kind in _EXPECTED:
        return f"{format_value(entry['input'])} is not {_EXPECTED[kind].format(**entry.get('ctx') or {})}"
    return f"{format_value(entry['input'])}: {message[0].lower()}{message[1:]}"


def _keys(model: Any, path: Path) -> list[str]:
    """Return the keys that the object at `path` in a document of `model` may have."""
    for part in path:
        field = getattr(model, "model_fields", {}).get(part)
        model = model if field is None else _model_in(field.annotation)
    if hasattr(model, "__dataclass_fields__"):
        return [each.path[0] for each in fields_in_file(model)]
    return list(getattr(model, "model_fields", ()))


def _model_in(annotation: Any) -> Any:
    if hasattr(annotation, "model_fields") or hasattr(annotation, "__dataclass_fields__"):
        return annotation
    models = [_model_in(inner) for inner in getattr(annotation, "__args__", ())]
    return next((model for model in models if model is not None), None)


def quantity(parse: Callable[[object], float]) -> BeforeValidator:
    """Return a validator of numbers with a unit, which `parse` reads as `ddpsim.common.units` does."""

    def validate(value: object) -> object:
        try:
            return parse(value)
        except UnitError as error:
            raise document_error(str(error)) from error

    return BeforeValidator(validate)
