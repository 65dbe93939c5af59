"""Ranks that behave alike, and the recorded iterations each of them replays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from ddpsim.simulation.pace import Pace, latest

DRAWS_PER_RECORD = 16
"""Of ranks beyond this multiple of the recorded iterations, the maximum is already the maximum of the record."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Ranks with the same workload and the same straggler factor.

    Attributes:
        ranks: which, ascending; the first is simulated as itself, the others as one, the latest of them at every point.
        paces: one a recorded iteration, scaled for this kind.
        spread: standard deviation, from device to device of one model, of the logarithm of computing time.
        share: of computing time that spreads.
    """

    ranks: Sequence[int]
    paces: tuple[Pace, ...]
    spread: float = 0.0
    share: float = 1.0

    @property
    def first(self) -> int:
        """The lowest rank."""
        return self.ranks[0]

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    def slowest(self) -> float:
        """Return the factor by which the slowest of the kind's devices is expected to take longer than the median.

        The expected maximum of `count` standard normal variables, as approximated by Blom (1958).
        """
        quantile = (self.count - 0.375) / (self.count + 0.25)
        return 1 + self.share * math.expm1(self.spread * NormalDist().inv_cdf(quantile)) if self.count > 1 else 1.0


def own_draw(kind: Kind, seed: int, iterations: int) -> Callable[[int], Pace]:
    """Return the pace of rank `kind.first` by iteration: recorded iterations, drawn with replacement."""
    drawn = _draw(kind, seed, kind.first, iterations)
    return lambda iteration: kind.paces[drawn[iteration]]


def latest_draw(kind: Kind, seed: int, iterations: int) -> Callable[[int], Pace] | None:
    """Return the pace of the latest of the kind's other ranks by iteration; None where they cannot differ."""
    if kind.count == 1 or (len(kind.paces) == 1 and kind.spread == 0):
        return None
    slower = kind.slowest()
    others = kind.ranks[1 : 1 + DRAWS_PER_RECORD * len(kind.paces)]
    drawn = np.stack([_draw(kind, seed, rank, iterations) for rank in others])
    optimizer = np.array([max(pace.optimizer_host, pace.optimizer_work) for pace in kind.paces])
    cache: dict[int, Pace] = {}

    def pace(iteration: int) -> Pace:
        if iteration not in cache:
            now, before = drawn[:, iteration], drawn[:, iteration - 1] if iteration else drawn[:, 0]
            pairs = sorted({(int(a), int(b)) for a, b in zip(now, before, strict=True)})
            last = latest([kind.paces[a] for a, _ in pairs], [float(optimizer[b]) for _, b in pairs])
            cache[iteration] = last.scaled(slower, 1.0)
        return cache[iteration]

    return pace


def _draw(kind: Kind, seed: int, rank: int, iterations: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.random.default_rng([seed, rank]).integers(len(kind.paces), size=iterations)
