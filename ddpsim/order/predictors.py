"""Predictors of when gradients will be ready.

A predictor is any object with these two methods; ten lines make one::

    class MedianReady:
        def __init__(self):
            self.seen = []

        def observe(self, ready):
            self.seen.append(list(ready))

        def predict(self):
            return [statistics.median(times) for times in zip(*self.seen)]

Its name, `package.module:MedianReady`, is then an option of predictions, runs and the bench alike.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Protocol, runtime_checkable

from ddpsim.errors import InputError


class Predictor(Protocol):
    """What the next backward is expected to bring, learnt from those before; one on each rank."""

    def observe(self, ready: Sequence[float]) -> None:
        """Take one backward: the ready time of each parameter by registration index, NaN where no gradient came."""

    def predict(self) -> Sequence[float]:
        """Return the expected ready time of each parameter, in the unit of what was observed; NaN where unknown."""


@runtime_checkable
class KnowsContext(Protocol):
    """A predictor that is told what is known of a batch: before `observe` of that one's, before `predict` the next."""

    def context(self, value: Hashable) -> None:
        """Take the context of the batch to observe or to predict; None where nothing is known."""


class LastArrival:
    """Expects what came last, as torch does; a parameter without a gradient keeps its last time."""

    def __init__(self) -> None:
        self._last: list[float] = []

    def observe(self, ready: Sequence[float]) -> None:
        """Keep `ready`."""
        before = self._last or [math.nan] * len(ready)
        self._last = [new if new == new else old for old, new in zip(before, ready, strict=True)]

    def predict(self) -> list[float]:
        """Return the last ready times."""
        return list(self._last)


class MeanReady:
    """Expects the mean ready time of the backwards that brought a gradient."""

    def __init__(self) -> None:
        self._sums: list[float] = []
        self._counts: list[int] = []

    def observe(self, ready: Sequence[float]) -> None:
        """Add `ready` to the sums."""
        if not self._sums:
            self._sums, self._counts = [0.0] * len(ready), [0] * len(ready)
        # Only NaN differs from itself; saves a call for each parameter.
        self._sums = [s + time if time == time else s for s, time in zip(self._sums, ready, strict=True)]
        self._counts = [n + (time == time) for n, time in zip(self._counts, ready, strict=True)]

    def predict(self) -> list[float]:
        """Return the means."""
        return [s / count if count else math.nan for s, count in zip(self._sums, self._counts, strict=True)]


class ExponentialMean:
    """Expects a mean in which each new backward has `weight`, so that old ones fade.

    Args:
        weight: above 0, at most 1; 1 is `LastArrival`.

    Raises:
        InputError: where `weight` is out of range.
    """

    def __init__(self, weight: float = 0.2) -> None:
        if not 0 < weight <= 1:
            raise InputError(f"weight {weight!r} is out of range", remedy="give a number above 0 and at most 1")
        self._weight = weight
        self._mean: list[float] = []

    def observe(self, ready: Sequence[float]) -> None:
        """Move the means towards `ready`."""
        before = self._mean or [math.nan] * len(ready)
        self._mean = [self._moved(old, new) for old, new in zip(before, ready, strict=True)]

    def predict(self) -> list[float]:
        """Return the means."""
        return list(self._mean)

    def _moved(self, old: float, new: float) -> float:
        if math.isnan(new):
            return old
        return new if math.isnan(old) else old + self._weight * (new - old)
