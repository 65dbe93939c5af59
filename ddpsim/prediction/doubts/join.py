"""How doubts are joined: independent causes add up in quadrature, each side by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpsim.prediction.doubts.doubt import Cause, Effect

_ROUNDING = 1e-12
"""Relative: what another order of a sum may change."""


def effect(cause: Cause, middle: float, ends: Sequence[float]) -> Effect:
    """Return what `cause` does to a number that is `middle` without it and `ends` at its ends, in either order."""
    return Effect(cause.name, cause.remedy, min(middle, *ends), max(middle, *ends), cause.left)


def sort_by_width(effects: Iterable[Effect]) -> tuple[Effect, ...]:
    """Return the effects by their width, without those that change nothing."""
    some = (each for each in effects if each.width > _ROUNDING * abs(each.high))
    return tuple(sorted(some, key=lambda each: (-each.width, each.name)))


def band(middle: float, effects: Iterable[Effect]) -> tuple[float, float]:
    """Return 10th and 90th percentile of a number that independent doubts move: the root of the sum of squares.

    Exact for a number linear in normally distributed causes.
    """
    known = list(effects)
    low = math.hypot(*(middle - each.low for each in known))
    return middle - low, middle + math.hypot(*(each.high - middle for each in known))


def positive_band(middle: float, effects: Iterable[Effect]) -> tuple[float, float]:
    """Return the band of a time: as `band`, but no lower than where every cause at its low end would bring it.

    Quadrature adds differences, and several causes that each halve a step add up to a step below 0. As factors they
    leave their product, which is the bound.
    """
    known = list(effects)
    low, high = band(middle, known)
    together = middle * math.prod(max(0.0, min(1.0, each.low / middle)) for each in known) if middle > 0 else low
    return max(low, together), high


def without(middle: float, effects: Sequence[Effect], removed: Effect) -> tuple[float, float]:
    """Return the band once the remedy of `removed` has been done."""
    left = removed.left
    less = replace(removed, low=middle - (middle - removed.low) * left, high=middle + (removed.high - middle) * left)
    return band(middle, [less if each == removed else each for each in effects])
