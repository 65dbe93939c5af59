"""What differs between two records of one case, as a reader wants it: which key, old, new, by how much.

Numbers may differ by `ROUNDING`, which another order of a sum may change. Of texts the words and the numbers are
compared apart, so that a rewording shows as one and hides no number.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ROUNDING = 1e-12
"""Relative: what another order of a sum may change."""
LOST = "(is gone)"
VARIES = ("provenance",)
"""Keys of documents that are not compared: versions and paths of the machine that recorded."""

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_SHOWN = 100
"""Characters of a value that are shown."""


@dataclass(frozen=True)
class Difference:
    """One value that is another now.

    Attributes:
        key: where in the case's record.
        old, new: the values.
        kind: "number", "words", "key" that is gone, or "value" of any other type.
    """

    key: str
    old: object
    new: object
    kind: str

    def __str__(self) -> str:
        if isinstance(self.old, (int, float)) and isinstance(self.new, (int, float)) and self.old:
            return f"{self.key}: {self.old!r} -> {self.new!r} ({self.new / self.old - 1:+.3g})"
        return f"{self.key}: {_short(self.old)} -> {_short(self.new)}"


def differences(before: Any, after: Any, key: str = "", *, scale: float = 0.0) -> Iterator[Difference]:
    """Yield where `after` lacks a key of `before` or has another value; keys may be added.

    Args:
        scale: what numbers are small beside: they may differ by `ROUNDING` of it, too.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before:
            if name not in after:
                yield Difference(f"{key}.{name}", before[name], LOST, "key")
            elif name not in VARIES:
                yield from differences(before[name], after[name], f"{key}.{name}", scale=scale)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{key}[{index}]", scale=scale)
    elif _is_number(before) and _is_number(after):
        if not math.isclose(before, after, rel_tol=ROUNDING, abs_tol=max(1e-18, ROUNDING * scale)):
            yield Difference(key, before, after, "number")
    elif isinstance(before, str) and isinstance(after, str):
        yield from differences_of_texts(before, after, key)
    elif before != after:
        yield Difference(key, before, after, "value")


def differences_of_texts(before: str, after: str, key: str) -> Iterator[Difference]:
    """Yield at most one difference of the words, a line of which is shown, and each number that is another.

    Where the words are the same each number is held against the one in its place; else those that are gone are named.
    """
    if before == after:
        return
    words = [_words(line) for line in before.splitlines()], [_words(line) for line in after.splitlines()]
    old, new = _NUMBER.findall(before), _NUMBER.findall(after)
    if words[0] != words[1]:
        gone, come = (list((Counter(a) - Counter(b)).elements()) for a, b in (words, words[::-1]))
        yield Difference(f"{key} (words)", " / ".join(gone) or "(as it was)", " / ".join(come) or LOST, "words")
    if len(old) == len(new) and words[0] == words[1]:
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            if not math.isclose(_value(one), _value(other), rel_tol=ROUNDING, abs_tol=1e-18):
                yield Difference(f"{key} (number {place + 1})", _value(one), _value(other), "number")
        return
    lost, found = Counter(map(_value, old)), Counter(map(_value, new))
    if lost - found:
        more = sorted((found - lost).elements())
        yield Difference(f"{key} (numbers)", sorted((lost - found).elements()), more, "number")


def _words(line: str) -> str:
    """Return a line without its numbers, and its runs of blanks and rules as one."""
    return " ".join(re.sub(r"[-─━=]{3,}", "-", _NUMBER.sub("#", line)).split())


def _value(text: str) -> float:
    return float(text.replace(",", "") or "nan")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
