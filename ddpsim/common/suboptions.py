"""Options within an option's text: `noreshard,gather=bf16,reduce=fp32` behind a scheme's name, `load=12ms,copy=38MB`.

A dataclass declares them: a field made by `flag` is a word that turns its default round, one made by `value` is
`key=...`, with the function that reads its text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from typing import Any, TypeVar

from ddpsim.common.errors import InputError
from ddpsim.common.strict import parse_whole_number
from ddpsim.common.units import parse_size

T = TypeVar("T")
Read = Callable[[str, str], Any]


def flag(word: str, default: bool = False) -> Any:
    """Return a dataclass's field that `word` turns round."""
    return field(default=default, metadata={"word": word})


def value(read: Read, default: Any = None, key: str | None = None) -> Any:
    """Return a dataclass's field whose value `read` takes from its text, with its place for errors.

    Args:
        key: how people write it where it is not the field's name.
    """
    return field(default=default, metadata={"read": read, "key": key})


def parse_options(kind: type[T], text: str, place: str) -> T:
    """Return a `kind` with the options that `text` lists.

    Raises:
        InputError: an option it does not declare, one asked twice, or a value that cannot be read.
    """
    words = {each.metadata["word"]: each for each in fields(kind) if "word" in each.metadata}  # type: ignore[arg-type]
    read = (each for each in fields(kind) if "read" in each.metadata)  # type: ignore[arg-type]
    values = {each.metadata["key"] or each.name: each for each in read}
    arguments: dict[str, Any] = {}
    for item in text.split(",") if text else ():
        key, equals, content = item.partition("=")
        field_of = words if not equals else values
        name = field_of[key].name if key in field_of else key
        if name in arguments:
            raise InputError(f"{key!r} is asked twice", place=place, remedy="ask once")
        if key in values and equals:
            arguments[name] = values[key].metadata["read"](content, f"{place}, {key}")
        elif key in words and not equals:
            arguments[name] = not words[key].default
        else:
            options = ", ".join([*words, *(f"{each}=..." for each in values)]) or "no option"
            raise InputError(f"it takes no option {item!r}", place=place, remedy=f"write {options}")
    return kind(**arguments)


def elements(text: str, place: str) -> int:
    """Return a number of elements, of at least one, as DeepSpeed's files have it: `5e8`.

    Raises:
        InputError: no such number.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number < float("inf"):
        raise InputError(f"{text!r} is no number of elements", place=place, remedy="write e.g. 5e8")
    return round(number)


def count(text: str, place: str) -> int:
    """Return a whole number of at least one.

    Raises:
        InputError: no such number.
    """
    if not (number := parse_whole_number(text)):
        raise InputError(f"{text!r} is no whole number above 0", place=place, remedy="write 1 or more")
    return number


def factor(text: str, place: str) -> float:
    """Return a number from 0.

    Raises:
        InputError: no such number.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise InputError(f"{text!r} is no number from 0", place=place, remedy="write e.g. 0.5")
    return number


def some_bytes(text: str, place: str) -> int:
    """Return a size of at least one byte.

    Raises:
        InputError: no such size.
    """
    size = round(parse_size(text, place))
    if size < 1:
        raise InputError("0 bytes hold no gradient", place=place, remedy="write e.g. 64MiB")
    return size
