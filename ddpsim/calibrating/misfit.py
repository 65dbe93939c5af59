"""Whether measured rows contradict each other, or the machine they are said to be of, and which rows do.

Good rows lie close to the constants fitted to them. Of the public tables that `python -m studies.accuracy.misfit` fits,
each by itself and each site's together, the worst is off by a factor of 1.7 in the mean, and its worst row by 23; both
bounds leave room above.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ddpsim.calibrating.fitting import Vector
from ddpsim.calibrating.samples import Sample
from ddpsim.common.errors import CalibrationError
from ddpsim.common.units import format_count, format_time

MEAN_FACTOR = 2.0
"""The most that rows may be off the constants fitted to them, in the geometric mean of measured over fitted."""
ROW_FACTOR = 40.0
"""The most that any single row may be."""
_MOST_NAMED = 2
"""Constants named beside a misfit at most; chosen by hand, for one line."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """How far rows lie from the constants fitted to them.

    Attributes:
        mean_factor: geometric mean of measured over fitted, or fitted over measured where that is more than 1.
        worst_factor: the same of the worst row.
        contradictions: a sentence each, the worst first; empty where both factors are within their bounds.
    """

    mean_factor: float
    worst_factor: float
    contradictions: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """What is wrong, in one message."""
        off = f"x{self.mean_factor:.3g} in the mean and x{self.worst_factor:.3g} at worst"
        bound = f"good tables: x{MEAN_FACTOR:g} and x{ROW_FACTOR:g} at most"
        return f"rows are {off} off the constants that fit best ({bound}): {'; '.join(self.contradictions)}"

    def refuse(self, *, accepted: bool) -> None:
        """Raise CalibrationError where rows contradict each other, unless that is `accepted`."""
        if self.contradictions and not accepted:
            raise CalibrationError(self.summary, remedy="leave wrong rows out, or accept them with `accept_misfit`")


@dataclass(frozen=True, slots=True)
class _Row:
    place: str
    size_bytes: int
    ranks: int
    measured_s: float
    residual: float

    def __str__(self) -> str:
        fitted_s = self.measured_s / math.exp(self.residual)
        what = f"{self.size_bytes:,} B on {format_count(self.ranks, 'rank')}"
        file_and_row = self.place.rpartition("/")[2]
        return f"{file_and_row} ({what}: {format_time(self.measured_s)} measured, {format_time(fitted_s)} fitted)"


def misfit(samples: Sequence[Sample], residuals: Vector) -> Misfit:
    """Return how far the samples' rows lie from a fit of constants.

    Args:
        samples: in the order of `residuals`.
        residuals: log(measured / fitted) of each row.
    """
    sizes = np.abs(residuals)
    mean, worst = float(sizes.mean()), float(sizes.max())
    if mean <= math.log(MEAN_FACTOR) and worst <= math.log(ROW_FACTOR):
        return Misfit(math.exp(mean), math.exp(worst))
    rows = [_Row(*place, residual) for place, residual in zip(_places(samples), residuals.tolist(), strict=True)]
    return Misfit(math.exp(mean), math.exp(worst), tuple(_contradictions(rows)))


def _places(samples: Sequence[Sample]) -> Iterator[tuple[str, int, int, float]]:
    for sample in samples:
        ranks = sample.placement.world_size
        for row, size, measured_s in zip(sample.table.rows, sample.sizes, sample.undisturbed.tolist(), strict=True):
            yield row.place, size, ranks, measured_s


def _contradictions(rows: Sequence[_Row]) -> Iterator[str]:
    """Yield the worst rows, each with the row nearest to it in size and ranks that is not off the same way.

    A pair is what a user can check: two measurements of nearly the same thing that cannot both be right. Where no row
    disagrees, all are off alike, and units or the machine are wrong.
    """
    left = sorted(rows, key=lambda row: -abs(row.residual))
    for _ in range(_MOST_NAMED):
        row = left.pop(0)
        if abs(row.residual) <= math.log(MEAN_FACTOR):
            return
        way = math.copysign(1, row.residual)
        against = [other for other in rows if other.residual * way <= math.log(MEAN_FACTOR)]
        other = min(against, key=lambda other: _distance(row, other), default=None)
        if other is None:
            slower = "slower" if row.residual > 0 else "faster"
            all_of_them = f"{row} is" if len(rows) == 1 else f"{row} and all others are"
            yield f"{all_of_them} {slower} than the machine can be: check units and topology"
            return
        yield f"{row} contradicts {other}"
        left = [each for each in left if each is not other]
        if not left:
            return


def _distance(row: _Row, other: _Row) -> tuple[float, float]:
    return abs(math.log(row.ranks / other.ranks)), abs(math.log(row.size_bytes / other.size_bytes))
