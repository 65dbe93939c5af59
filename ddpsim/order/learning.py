"""Predictors that learn: what follows a set of used parameters, and what a batch's context brings."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from ddpsim.order.predictors import MeanReady

Used = frozenset[int]


class ByBranch:
    """Learns the mean ready times of each branch, a set of used parameters, and which branches follow which.

    Expects the mean over the branches that have followed the last one, each as often as it has; a parameter that none
    of them used is expected to go unused. Before a branch has been followed, all branches count.

    Attributes:
        MOST: branches that are told apart; those seen least are forgotten.
    """

    MOST = 64

    def __init__(self) -> None:
        self._means: dict[Used, MeanReady] = {}
        self._after: dict[Used, dict[Used, int]] = {}
        self._last: Used | None = None
        self._count = 0

    def observe(self, ready: Sequence[float]) -> None:
        """Add a backward to its branch, and the branch to those that follow the one before."""
        used = frozenset(index for index, time in enumerate(ready) if time == time)
        self._count = len(ready)
        self._means.setdefault(used, MeanReady()).observe(ready)
        if self._last is not None:
            following = self._after.setdefault(self._last, {})
            following[used] = following.get(used, 0) + 1
        self._last = used
        if len(self._means) > self.MOST:
            self._forget()

    def predict(self) -> list[float]:
        """Return the mean over what has followed the last branch."""
        following = {} if self._last is None else self._after.get(self._last, {})
        known = {used: times for used, times in following.items() if used in self._means}
        weights = known or dict.fromkeys(self._means, 1)
        sums, counts = [0.0] * self._count, [0] * self._count
        for used, times in weights.items():
            mean = self._means[used].predict()
            for index in used:
                sums[index] += times * mean[index]
                counts[index] += times
        return [total / count if count else math.nan for total, count in zip(sums, counts, strict=True)]

    def _forget(self) -> None:
        seen = {used: sum(after.get(used, 0) for after in self._after.values()) for used in self._means}
        least = min((used for used in seen if used != self._last), key=lambda used: (seen[used], sorted(used)))
        del self._means[least]
        self._after.pop(least, None)
        for after in self._after.values():
            after.pop(least, None)


class ByContext:
    """Learns the mean ready times of each context of a batch; of one never seen, the mean of all.

    A parameter that no backward of the context used is expected to go unused.
    """

    def __init__(self) -> None:
        self._means: dict[Hashable, MeanReady] = {}
        self._all = MeanReady()
        self._context: Hashable = None

    def context(self, value: Hashable) -> None:
        """Take the context of the batch to observe or to predict."""
        self._context = value

    def observe(self, ready: Sequence[float]) -> None:
        """Add a backward to its context."""
        self._means.setdefault(self._context, MeanReady()).observe(ready)
        self._all.observe(ready)

    def predict(self) -> list[float]:
        """Return the means of the coming batch's context."""
        return self._means.get(self._context, self._all).predict()
