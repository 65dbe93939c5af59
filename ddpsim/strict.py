"""Values that can be written into a file and that no file of this project, nor one it reads, holds."""

from __future__ import annotations

import json
import math
from typing import NoReturn

from ddpsim.errors import InputError

_MOST = 1 << 128
"""No integer is as large: an identifier of 128 bits is below."""
_MOST_VALUES = 100_000_000
"""Values of a document at most; chosen by hand, beyond any file made here."""
_MOST_LEVELS = 2000
"""Nesting of a document at most; chosen by hand."""


def check_values(
    document: object, place: str, error: type[InputError], remedy: str, *, finite: bool = True, most: int = _MOST_VALUES
) -> None:
    """Raise `error` for the first value, named by its path, that no document holds.

    That is an integer of hundreds of digits, which overflows in arithmetic and fills messages; NaN and infinity where
    `finite`; half of a surrogate pair, which is no text; and, through YAML's aliases, more values than `most`.
    """
    waiting: list[tuple[str, int, object]] = [("", 0, document)]
    seen = 0
    while waiting:
        path, level, value = waiting.pop()
        seen += 1
        if seen > most or level > _MOST_LEVELS:
            what = f"more than {most} values" if seen > most else "nested too deep"
            raise error(what, place=place, remedy=remedy)
        if wrong := _misfit(value, finite):
            raise error(wrong, place=f"{place}: {path}" if path else place, remedy=remedy)
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        inner: list[tuple[str, int, object]] = []
        for key, each in items:
            inner += [(path, level, key), (f"{path}.{key}" if path else str(key), level + 1, each)]
        waiting += reversed(inner)


def load_json(text: str, place: str, error: type[InputError], remedy: str, *, finite: bool) -> object:
    """Return the document that `text` is.

    Raises:
        ValueError, RecursionError: not JSON, as `json.loads` has them; of `error` for what `check_values` refuses.
    """
    number, constant = (_finite, _refused) if finite else (None, None)
    try:
        document: object = json.loads(text, parse_int=_whole, parse_float=number, parse_constant=constant)
    except _MisfitError:
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


def _whole(digits: str) -> int:
    number = int(digits)
    if not -_MOST < number < _MOST:
        raise _MisfitError
    return number


def _finite(digits: str) -> float:
    number = float(digits)
    if not -math.inf < number < math.inf:
        raise _MisfitError
    return number


def _refused(_: str) -> NoReturn:
    raise _MisfitError
