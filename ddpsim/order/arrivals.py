"""In which order, and when, gradients arrived: one record a backward and rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddpsim.trace import Trace


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The gradients of one synced backward on one rank, as their hooks fired.

    Attributes:
        rank: who saw them.
        iteration: in which iteration.
        order: registration indices by arrival; what got no gradient is absent.
        ready_s: when each of `order` arrived, from the start of backward; None where only the order is known.
    """

    rank: int
    iteration: int
    order: tuple[int, ...]
    ready_s: tuple[float, ...] | None = None

    def ready(self, count: int) -> list[float]:
        """Return the ready time of each of `count` parameters, NaN where no gradient came.

        Without recorded times a parameter's time is its place in the order, so that one first place differs from the
        next by one.
        """
        times = [math.nan] * count
        for time, index in zip(
            range(len(self.order)) if self.ready_s is None else self.ready_s, self.order, strict=True
        ):
            times[index] = time
        return times


def from_times(ready_s: Sequence[float], rank: int = 0, iteration: int = 0) -> Arrivals:
    """Return the arrivals that the ready times of all parameters spell out.

    Args:
        ready_s: by registration index, from the start of backward; NaN where no gradient came.
        rank: who saw them.
        iteration: in which iteration.
    """
    order = sorted((i for i, time in enumerate(ready_s) if not math.isnan(time)), key=lambda i: ready_s[i])
    return Arrivals(rank, iteration, tuple(order), tuple(float(ready_s[i]) for i in order))


def arrivals_of(trace: Trace) -> list[Arrivals]:
    """Return the arrivals of every synced iteration of a trace, by hook time on the host."""
    return [
        _of_gradients(it.rank, it.index, [(g.hook_s, g.parameter) for g in it.gradients])
        for it in trace.iterations
        if it.synced and it.gradients
    ]


def _of_gradients(rank: int, iteration: int, gradients: Iterable[tuple[float, int]]) -> Arrivals:
    ordered = sorted(gradients)
    start = ordered[0][0]
    return Arrivals(rank, iteration, tuple(i for _, i in ordered), tuple(time - start for time, _ in ordered))
