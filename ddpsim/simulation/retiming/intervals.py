"""Overlaps of intervals: what is lost, shared or spent while several go on at once; in many columns at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Columns = NDArray[np.float64]
"""Numbers whose last axis is the columns, one for each assumption."""

_SHORT_S = 1e-12
"""What takes no longer has no share of anything."""


class Integral:
    """The integral of a rate over time in each column, from 0 on; the rate is constant between `times`.

    Args:
        times: ascending: (times, columns).
        rates: from each of them to the next; before the first and after the last the rate is 0.
        horizon_s: later than all times.
    """

    def __init__(self, times: Columns, rates: Columns, horizon_s: float) -> None:
        # All columns are one piecewise linear function: each is shifted by a horizon that no time of the one before
        # reaches, so that one `np.interp` answers for all.
        columns = times.shape[1]
        self._shift = horizon_s * np.arange(columns)
        grown = np.zeros((len(times) + 2, columns))
        np.cumsum(rates[:-1] * np.diff(times, axis=0), axis=0, out=grown[2:-1])
        grown[-1] = grown[-2]
        at = np.zeros_like(grown)
        at[1:-1] = times
        at[-1] = 0.999 * horizon_s
        at += self._shift
        self._at, self._grown = at.T.ravel(), grown.T.ravel()

    def until(self, times: Columns) -> Columns:
        """Return the integral until `times`: (any, columns)."""
        # One column after the other, for what is asked for in order is found soonest.
        shifted = (times + self._shift).T
        return np.interp(shifted.ravel(), self._at, self._grown).reshape(shifted.shape).T


def sort_changes(begin: Columns, end: Columns, *taken: Columns) -> tuple[Columns, ...]:
    """Return when something begins or ends, ascending, and after each such time how many go on and take how much.

    Args:
        begin, end: of each: (any, columns).
        taken: by each while it goes on, several amounts.
    """
    times = np.concatenate([begin, end])
    order = np.argsort(times, axis=0, kind="stable")
    amounts = (np.ones_like(begin), *taken)
    changes = (np.take_along_axis(np.concatenate([each, -each]), order, axis=0) for each in amounts)
    return np.take_along_axis(times, order, axis=0), *(np.cumsum(each, axis=0) for each in changes)


def mean_factors(begin: Columns, end: Columns, times: Columns, factors: Columns, horizon_s: float) -> Columns:
    """Return by what factor each of some intervals is longer than its work, under factors that change at `times`."""
    lost = Integral(times, 1 - 1 / factors, horizon_s)
    took_s = end - begin
    work_s = took_s - (lost.until(end) - lost.until(begin))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((took_s > _SHORT_S) & (work_s > 0), took_s / work_s, 1.0)


def is_in_flight(
    times: Columns, begin: Columns, end: Columns, horizon_s: float, side: Literal["left", "right"] = "left"
) -> NDArray[np.bool_]:
    """Return whether something is in flight at `times`: it has begun before and ends after.

    Args:
        begin, end: ascending, each by itself.
        horizon_s: later than all times.
        side: `right` where what begins just then counts.
    """
    shift = horizon_s * np.arange(begin.shape[1])
    shifted = times + shift
    begun, over = ((each + shift).T.ravel() for each in (begin, end))
    in_flight: NDArray[np.bool_] = np.searchsorted(begun, shifted, side) > np.searchsorted(over, shifted, "right")
    return in_flight


def integrate_busy(begin: Columns, end: Columns, horizon_s: float) -> Callable[[Columns], Columns]:
    """Return a function of time: how long intervals, one after the other, have lasted in sum until then."""
    times = np.empty((2 * len(begin), begin.shape[1]))
    times[0::2], times[1::2] = begin, end
    rates = np.zeros_like(times)
    rates[0::2] = 1.0
    return Integral(times, rates, horizon_s).until


def fair_rates(begin: Columns, end: Columns, horizon_s: float) -> Columns:
    """Return at what rate, in the mean, each of some intervals goes on where all that go on have equal parts of it."""
    times, count = sort_changes(begin, end)
    rates = 1 / np.maximum(count, 1.0)
    until = Integral(times, rates, horizon_s).until
    return 1 - share((end - begin) - (until(end) - until(begin)), end - begin)


def share(part_s: Columns, whole_s: Columns) -> Columns:
    """Return which part of times something lasted, between 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(whole_s > _SHORT_S, part_s / whole_s, 0.0)
    clipped: Columns = np.clip(shares, 0.0, 1.0)
    return clipped
