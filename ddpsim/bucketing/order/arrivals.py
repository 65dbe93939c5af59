"""In which order, and when, gradients arrived: one record a backward and rank."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ddpsim.trace.records import Iteration, Trace


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals are the gradients of one synced backward on one rank, in the order in which their hooks fired.

    Attributes:
        rank: who saw them.
        iteration: in which iteration.
        order: registration indices by arrival; what got no gradient is absent.
        ready_s: when each of `order` arrived, from the start of backward; None where only the order is known.
        context: what was known of the batch before its forward: a task, a length; None where nothing was.
    """

    rank: int
    iteration: int
    order: tuple[int, ...]
    ready_s: tuple[float, ...] | None = None
    context: Hashable = None

    def list_ready(self, count: int) -> list[float]:
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
    return [arrivals_in(it) for it in trace.iterations if it.synced and it.gradients]


def arrivals_in(iteration: Iteration) -> Arrivals:
    """Return the arrivals of an iteration with gradients, by hook time on the host, from the first; ties by index."""
    ordered = sorted((g.hook_s, g.parameter) for g in iteration.gradients)
    start = ordered[0][0]
    order, ready_s = tuple(index for _, index in ordered), tuple(time - start for time, _ in ordered)
    return Arrivals(iteration.rank, iteration.index, order, ready_s)
