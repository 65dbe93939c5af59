"""Times of a workload as arrays, and as its file has them: lists of seconds, with `null` where there is no time."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ddpsim.common.documents.fields import Parsed
from ddpsim.common.errors import InputError, shorten

Seconds = NDArray[np.float64]

_KINDS = frozenset((float, int, type(None)))


def _read_row(value: object) -> Seconds:
    """Return seconds as an array of shape (iterations,)."""
    if not isinstance(value, list):
        raise InputError(f"{_show(value)} is not a list of seconds")
    _check_row(value)
    return _array(value)


def _read_table(value: object) -> Seconds:
    """Return seconds as an array of shape (iterations, parameters)."""
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise InputError(f"{_show(value)} is not a list of lists of seconds")
    for number, row in enumerate(value):
        _check_row(row, f"{number}.")
        if len(row) != len(value[0]):
            raise InputError(f"{len(row)} times, the first iteration has {len(value[0])}", place=str(number))
    return _array(value)


def _check_row(row: list[Any], within: str = "") -> None:
    # Kinds are told apart a row at a time: pydantic's look at each of millions of times would take as long as reading.
    if not {*map(type, row)} <= _KINDS:
        number = next(number for number, entry in enumerate(row) if type(entry) not in _KINDS)
        raise InputError(f"{_show(row[number])} is not a number of seconds, nor null", place=f"{within}{number}")


def _array(value: list[Any]) -> Seconds:
    try:
        return np.array(value, dtype=np.float64)
    except OverflowError:
        raise InputError("a time is larger than any number") from None


def _show(value: object) -> str:
    return shorten(repr(value), 60)


def write_row(times: Seconds) -> list[float | None]:
    """Return times as JSON values."""
    return [None if value != value else value for value in times.tolist()]


def write_table(times: Seconds) -> list[list[float | None]]:
    """Return a table of times as JSON values."""
    return [write_row(row) for row in times]


Times = Annotated[Seconds, Parsed(_read_row, write_row)]
Table = Annotated[Seconds, Parsed(_read_table, write_table)]
