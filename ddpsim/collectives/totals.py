"""Sums by key."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def total_by_key(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the sum of the numbers of each key, in the order in which keys come first.

    >>> total_by_key([("a", 1.0), ("b", 2.0), ("a", 0.5)])
    {'a': 1.5, 'b': 2.0}
    """
    total: dict[Key, float] = {}
    for key, number in pairs:
        total[key] = total.get(key, 0.0) + number
    return total
