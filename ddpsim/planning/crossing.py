"""Where a falling curve crosses zero, and by how much each doubt moves that: a break-even with its band."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from ddpsim.prediction.doubts import join
from ddpsim.prediction.doubts.doubt import Doubt
from ddpsim.prediction.prediction import Band
from ddpsim.simulation.communication import Assumptions

Curve = Callable[[float, Assumptions | None], float]
"""A number that falls with its first argument, under assumptions; None is what is predicted."""

NARROW = 0.25
"""Octaves between the two points of a curve that a crossing is interpolated between; chosen by hand: a curve is
straight over a fifth of its argument, to a percent of it."""

_STEPS = 2
"""Steps of the secant method from the crossing as predicted to that at a doubt's end; the first lands within a few
percent of it."""

_OCTAVE = math.log(2)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a curve becomes zero, and its slope over the logarithm of its argument there."""

    at: float
    slope: float


def crossing(curve: Curve, least: float, most: float, narrow: float = NARROW) -> Crossing | None:
    """Return where `curve` falls through zero between `least` and `most`; None where it does not.

    Bisection over logarithms until two points are `narrow` octaves apart, then linear interpolation between them: a
    point costs a prediction. Invariant: the curve is above zero at `low`, and not at `high`.
    """
    low, high = math.log(least), math.log(most)
    above, below = curve(least, None), curve(most, None)
    if above <= 0 or below > 0:
        return None
    while high - low > narrow * _OCTAVE:
        middle = (low + high) / 2
        value = curve(math.exp(middle), None)
        if value > 0:
            low, above = middle, value
        else:
            high, below = middle, value
    slope = (below - above) / (high - low)
    return Crossing(math.exp(low - above / slope), slope)


def banded_crossing(
    curve: Callable[[float], Band],
    middle: Callable[[float], float],
    points: Sequence[float],
    narrow: float,
) -> Band:
    """Return where the middle of `curve`, the low end and the high end of its band fall through zero.

    0 stands for a curve that is not above zero at the first point, infinity for one that is above zero at the last. A
    band costs some twenty ends, and the middle one prediction: bands are made at `points` alone, by bisection at the
    two between which an end changes its sign, and between these the end's distance from the middle is interpolated.

    Args:
        middle: of `curve`, which takes less time than its band.
        points: ascending.
        narrow: as that of `crossing`, of the ends of the band, which nobody reads as closely as the middle.
    """

    known = cache(middle)

    @cache
    def value(number: int) -> Band:
        return curve(points[number])

    def crossing_of(side: int) -> float:
        # `side` is 0 for the middle, 1 for the low and 2 for the high end of the band.
        first, last = 0, len(points) - 1
        if value(first)[side] <= 0:
            return 0.0
        if value(last)[side] > 0:
            return math.inf
        while last - first > 1:
            between = (first + last) // 2
            first, last = (between, last) if value(between)[side] > 0 else (first, between)
        begin, length = points[first], math.log(points[last] / points[first])
        before, after = (value(number)[side] - value(number)[0] for number in (first, last))

        # The end itself, as finely as one likes: the exact middle, with the interpolated distance.
        def end(at: float, _: object) -> float:
            return known(at) + before + (after - before) * math.log(at / begin) / length

        at_zero = crossing(end, begin, points[last], narrow if side else NARROW)
        return begin if at_zero is None else at_zero.at

    return crossing_of(0), crossing_of(1), crossing_of(2)


def crossing_band(
    curve: Curve, found: Crossing, doubts: Sequence[Doubt], least: float, most: float
) -> tuple[float, float]:
    """Return 10th and 90th percentile of where `curve` crosses zero, each doubt moving the whole curve.

    The doubts' shifts of the crossing are joined in logarithms, in which a rate's errors are symmetrical.

    Args:
        curve: falls with its argument.
        found: its crossing as predicted.
        doubts: of the prediction there.
        least, most: bounds of the argument; a crossing beyond one is taken to be there.
    """
    middle = math.log(found.at)
    bounds = math.log(least), math.log(most)
    effects = [
        join.effect(doubt, middle, [_move_crossing(curve, found, end, bounds) for end in (doubt.low, doubt.high)])
        for doubt in doubts
    ]
    low, high = join.band(middle, effects)
    return math.exp(max(low, bounds[0])), math.exp(min(high, bounds[1]))


def _move_crossing(curve: Curve, predicted: Crossing, end: Assumptions | None, bounds: tuple[float, float]) -> float:
    """Return the logarithm of where the curve crosses zero at the end of a doubt, by a few steps of the secant method.

    It starts with the slope of the curve as predicted. A secant that does not fall is noise of the simulation, and the
    slope before it is used on.
    """
    at = math.log(predicted.at)
    if end is None:
        return at
    slope, value = predicted.slope, curve(predicted.at, end)
    for _ in range(_STEPS):
        then = min(max(at - value / slope, bounds[0]), bounds[1])
        if abs(then - at) < _LEAST_STEP:
            return then
        value_then = curve(math.exp(then), end)
        secant = (value_then - value) / (then - at)
        slope = secant if secant < 0 else slope
        at, value = then, value_then
    return min(max(at - value / slope, bounds[0]), bounds[1])


_LEAST_STEP = 0.01
"""Logarithm below which a crossing is not sought any nearer: a percent of a rate that nobody buys to a percent."""
