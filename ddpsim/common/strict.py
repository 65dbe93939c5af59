"""Checks for values that JSON or YAML can hold and no proper file does: huge integers, NaN, half characters, floods."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from ddpsim.common.errors import InputError

_MOST = 1 << 128
"""No integer is as large: an identifier of 128 bits is below."""
_MOST_VALUES = 10_000_000
"""Values of a document at most; chosen by hand, beyond any file made here, and below 1 GB of memory."""
_MOST_LEVELS = 2000
"""Nesting of a document at most; chosen by hand."""
_END = object()


def check_values(
    document: object, place: str, error: type[InputError], remedy: str, *, finite: bool = True, most: int = _MOST_VALUES
) -> None:
    """Raise `error` for the first value, named by its path, that no document holds.

    That is an integer of hundreds of digits, which overflows in arithmetic and fills messages; NaN and infinity where
    `finite`; half of a surrogate pair, which is no text; and, through YAML's aliases, more values than `most`.
    """
    # Depth first with a stack of our own, one frame a level: nesting in a file must not be recursion here.
    seen = 0
    waiting: list[tuple[str, Iterator[tuple[object, object]]]] = [("", iter([("", document)]))]
    while waiting:
        above, items = waiting[-1]
        key, value = next(items, (None, _END))
        if value is _END:
            waiting.pop()
            continue
        path = f"{above}.{key}" if above else str(key)
        seen += 1
        if seen > most or len(waiting) > _MOST_LEVELS:
            deep = f"nested too deep, {_MOST_LEVELS:,} levels at most are read"
            raise error(f"more than {most:,} values" if seen > most else deep, place=place, remedy=remedy)
        for where, each in ((above, key), (path, value)):
            if wrong := _misfit(each, finite):
                raise error(wrong, place=f"{place}: {where}" if where else place, remedy=remedy)
        if isinstance(value, dict | list):
            inner: Iterable[tuple[object, object]] = value.items() if isinstance(value, dict) else enumerate(value)
            waiting.append((path, iter(inner)))


def check_count(text: str, place: str, error: type[InputError], remedy: str, most: int = _MOST_VALUES) -> None:
    """Raise `error` for JSON of more values than `most`, before they are made: marks stand between them.

    Those inside of texts count too; what is refused for them alone is a document of texts beyond any that is made.
    """
    if sum(map(text.count, ",[{")) > most:
        raise error(f"more than {most:,} values, the most that is read", place=place, remedy=remedy)


def load_json(text: str, place: str, error: type[InputError], remedy: str, *, finite: bool) -> object:
    """Return the document that `text` is.

    Raises:
        ValueError, RecursionError: not JSON, as `json.loads` has them; of `error` for what `check_values` refuses.
    """
    check_count(text, place, error, remedy)
    number, constant = (_parse_finite, _refuse_constant) if finite else (None, None)
    try:
        document: object = json.loads(text, parse_int=_parse_whole, parse_float=number, parse_constant=constant)
    except _MisfitError:
        # Read again, numbers as they are, to name the place of the wrong one.
        document = json.loads(text)
        check_values(document, place, error, remedy, finite=finite)
    # Checking every value takes as long as reading it: numbers are checked as they are read, texts where it may matter.
    if "\\ud" in text or "\\uD" in text:
        check_values(document, place, error, remedy, finite=finite)
    return document


def _misfit(value: object, finite: bool) -> str | None:
    """Return what is wrong with a value by itself; None where nothing is."""
    if isinstance(value, int) and not -_MOST < value < _MOST:
        return f"an integer of {len(str(abs(value)))} digits is not a number that a file holds"
    if finite and isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number"
    if isinstance(value, str) and not _is_text(value):
        return f"{value!a} is not text"
    return None


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class _MisfitError(Exception):
    """A number that `check_values` refuses."""


def _parse_whole(digits: str) -> int:
    number = int(digits)
    if not -_MOST < number < _MOST:
        raise _MisfitError
    return number


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if not -math.inf < number < math.inf:
        raise _MisfitError
    return number


def _refuse_constant(_: str) -> NoReturn:
    raise _MisfitError


_MOST_DIGITS = 18
"""Of a whole number in a text: all of them fit signed 64 bits."""


def parse_whole_number(text: str) -> int | None:
    """Return the number that `text` says in ASCII digits; None where it says none, or one of more than 18 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def list_mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the mappings of a list that a file should have; none where it is no list."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
