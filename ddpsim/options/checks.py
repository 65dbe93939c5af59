"""Rules that several options keep; each error names the option as Python does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddpsim.errors import InputError
from ddpsim.options.option import declared

LARGEST_FACTOR = 1e9
"""On any time; its inverse is the smallest."""


def known_choices(options: Any) -> None:
    """Raise InputError unless each option of `options` that is one of several names is one of them."""
    for each in declared(options.__class__):
        value = getattr(options, each.field, None) if each.choices else None
        if value is not None and value not in each.choices:
            remedy = f"use one of {', '.join(each.choices)}"
            raise InputError(f"unknown value {value!r}", place=each.field, remedy=remedy)


def at_least_one(name: str, count: int, most: int | None = None) -> None:
    """Raise InputError for a count below 1, or above `most`."""
    if count < 1:
        raise InputError(f"{count} is not a count", place=name, remedy="give 1 or more")
    if most is not None and count > most:
        raise InputError(f"{count} are too many", place=name, remedy=f"give at most {most}")


def positive(name: str, factor: float) -> None:
    """Raise InputError for a factor that is not above 0, or is of no real machine."""
    if not 0 < factor < float("inf"):
        raise InputError(f"{factor!r} is not a factor", place=name, remedy="give a number above 0, e.g. 1.5")
    if not 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        remedy = f"give a number from {1 / LARGEST_FACTOR:g} to {LARGEST_FACTOR:g}, e.g. 1.5"
        raise InputError(f"{factor!r} is out of range", place=name, remedy=remedy)


def check_given(what: str, values: Sequence[object]) -> None:
    """Raise InputError for a list of values without any."""
    if not values:
        raise InputError("nothing is given", place=what, remedy="give at least one")
