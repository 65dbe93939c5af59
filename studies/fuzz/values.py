"""Values that files do not hold, but could."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from random import Random

DEEP = "@deep@"
"""Stands in a document for lists nested too deep to be built as values."""
_DEPTHS = (30, 300, 100_000)

NUMBERS: Sequence[object] = (
    -1, 0, 1, 2, 7, 1023, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**18, 10**30,
    10**100, 10**310, -(10**310), int("9" * 4000), 0.5, -0.0, -0.5, 1.5, 1e-9, 5e-324, 1e6, 1e16, 1e18, 1e100, 1e300,
    1.7e308, -1e300, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS: Sequence[str] = (
    "", " ", "x", "0", "-1", "1.5", "nan", "inf", "1e400", "9" * 400, "x" * 300, "x" * 5000, "y " * 3000,
    "../../victim", ".", "..", "a/b", "a\0b", "a\nb", "\x1b[31m", "é", "日本", "\ud800", "🙂" * 300, "12:30", "5GB",
    "5GB/s", "0GB/s", "1e300GB/s", "1e-300GB/s", "-1us", "1e300s", "9" * 400 + "us", "gpu0", "nic0", "gpu0>gpu1",
    "dgx-1v", "float32", "cuda:0", "cpu", "None", "true", "{}", "%s", "32.0.32.0 GT/s", "0x", "0x" + "f" * 400, "-0x1",
    "1_000", "٣",
)  # fmt: skip
OTHERS: Sequence[object] = (
    None, True, False, [], {}, [[]], [None], [1], ["x"], {"": None}, {"a": 1}, [[0, 1, 2]], DEEP
)  # fmt: skip


def value(random: Random) -> object:
    """Return one of the values, which is the caller's to change."""
    return deepcopy(random.choice(random.choice((NUMBERS, TEXTS, OTHERS))))


def token(random: Random) -> str:
    """Return a number or text as a text file would hold it."""
    chosen = random.choice(random.choice((NUMBERS, TEXTS)))
    return chosen if isinstance(chosen, str) else written(chosen)


def deep(random: Random) -> str:
    """Return lists or objects nested deep, as JSON."""
    levels = random.choice(_DEPTHS)
    opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
    return opening * levels + "1" + closing * levels


def written(document: object) -> str:
    """Return a document as JSON that may hold integers of any length and what JSON lacks."""
    return json.dumps(document)
