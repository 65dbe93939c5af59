"""What goes on beside what, in columns: collectives in flight beside computation, computation beside collectives.

All columns are looked up at once: column k's moments are shifted by k times a length that no moment reaches.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ddpsim.simulation.job_run import Columns

_SHORT_S = 1e-12
"""What takes no longer has no share of anything."""


class Integral:
    """The integral of a rate over time in each column, from 0 on; the rate is constant between moments.

    Args:
        moments: ascending: (moments, columns).
        rates: from each moment to the next; after the last it is 0, as before the first.
        horizon_s: that no moment reaches.
    """

    def __init__(self, moments: Columns, rates: Columns, horizon_s: float) -> None:
        columns = moments.shape[1]
        self._shift = horizon_s * np.arange(columns)
        grown = np.zeros((len(moments) + 2, columns))
        np.cumsum(rates[:-1] * np.diff(moments, axis=0), axis=0, out=grown[2:-1])
        grown[-1] = grown[-2]
        at = np.zeros_like(grown)
        at[1:-1] = moments
        at[-1] = 0.999 * horizon_s
        at += self._shift
        self._at, self._grown = at.T.ravel(), grown.T.ravel()

    def until(self, moments: Columns) -> Columns:
        """Return the integral until `moments`: (any, columns)."""
        return np.interp(moments + self._shift, self._at, self._grown)


def sorted_changes(begin: Columns, end: Columns, *taken: Columns) -> tuple[Columns, ...]:
    """Return the moments at which something begins or ends, ascending, and after each how many go on and take how much.

    Args:
        begin, end: of each: (any, columns).
        taken: by each while it goes on, several amounts.
    """
    moments = np.concatenate([begin, end])
    order = np.argsort(moments, axis=0, kind="stable")
    amounts = (np.ones_like(begin), *taken)
    changes = (np.take_along_axis(np.concatenate([each, -each]), order, axis=0) for each in amounts)
    return np.take_along_axis(moments, order, axis=0), *(np.cumsum(each, axis=0) for each in changes)


def mean_factors(begin: Columns, end: Columns, moments: Columns, factors: Columns, horizon_s: float) -> Columns:
    """Return by what factor each of some intervals is longer than its work, under factors that change at `moments`."""
    lost = Integral(moments, 1 - 1 / factors, horizon_s)
    took_s = end - begin
    work_s = took_s - (lost.until(end) - lost.until(begin))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((took_s > _SHORT_S) & (work_s > 0), took_s / work_s, 1.0)


def in_flight_at(moments: Columns, begin: Columns, end: Columns) -> Columns:
    """Return whether something is in flight at `moments`: it has begun before and ends after."""
    found = np.empty(moments.shape, dtype=bool)
    for column in range(moments.shape[1]):
        at, begun, over = moments[:, column], np.sort(begin[:, column]), np.sort(end[:, column])
        found[:, column] = np.searchsorted(begun, at, "left") > np.searchsorted(over, at, "right")
    return found


def going_on(moments: Columns, begin: Columns, end: Columns) -> Columns:
    """Return whether one of some intervals, one after the other, has begun by `moments` and ends after."""
    found = np.empty(moments.shape, dtype=bool)
    for column in range(moments.shape[1]):
        at = moments[:, column]
        begun, over = np.searchsorted(begin[:, column], at, "right"), np.searchsorted(end[:, column], at, "right")
        found[:, column] = begun > over
    return found


def busy_until(begin: Columns, end: Columns, horizon_s: float) -> Callable[[Columns], Columns]:
    """Return what tells until a moment how long one after another of some intervals has lasted."""
    moments = np.empty((2 * len(begin), begin.shape[1]))
    moments[0::2], moments[1::2] = begin, end
    rates = np.zeros_like(moments)
    rates[0::2] = 1.0
    return Integral(moments, rates, horizon_s).until


def fair_rates(begin: Columns, end: Columns, horizon_s: float) -> Columns:
    """Return at what rate, in the mean, each of some intervals goes on where all that go on have equal parts of it."""
    moments, count = sorted_changes(begin, end)
    rates = 1 / np.maximum(count, 1.0)
    until = Integral(moments, rates, horizon_s).until
    return 1 - share((end - begin) - (until(end) - until(begin)), end - begin)


def share(part_s: Columns, whole_s: Columns) -> Columns:
    """Return which part of times something lasted, between 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(whole_s > _SHORT_S, part_s / whole_s, 0.0)
    clipped: Columns = np.clip(found, 0.0, 1.0)
    return clipped
