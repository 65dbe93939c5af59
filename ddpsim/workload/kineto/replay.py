"""The device's time line of a trace, replayed without DDP."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from ddpsim.workload.kineto.events import DeviceWork
from ddpsim.workload.kineto.steps import Cut, HostStep, is_communication

_TOUCHING_S = 2e-6
"""Kernels no further apart than this follow one another without the device waiting for the host."""

_RELEASED_S = 20e-6
"""What starts so soon after the end of a collective had waited for it."""


@dataclass(frozen=True, slots=True)
class ReplayedWork:
    """A work of the model, when the host launched it in the trace, and when it runs without DDP."""

    work: DeviceWork
    launched_s: float
    start_s: float
    end_s: float


class TimelineWithoutDdp:
    """Replays host and device without DDP's part in either.

    On the host, DDP's intervals are cut out. On the device, communication and what DDP launched are left out, and
    every other work starts when it is launched and its own lag has passed, or when its stream is free.

    Attributes:
        works: the model's, in launch order.
    """

    def __init__(self, works: Sequence[DeviceWork], steps: Sequence[HostStep]) -> None:
        self._cut = Cut(chain.from_iterable(step.ddp for step in steps))
        self.works = _replay(works, self._cut)
        self._launches = [replayed.launched_s for replayed in self.works]
        ends = [replayed.end_s for replayed in self.works]
        self._latest = np.maximum.accumulate(ends).tolist() if ends else []

    def moment(self, moment_s: float) -> float:
        """Return a moment of the host without what DDP did before it."""
        return self._cut.moment(moment_s)

    def list_launched(self, start_s: float, end_s: float) -> Sequence[ReplayedWork]:
        """Return the works that the trace's host launched from one moment to another, both included."""
        return self.works[bisect_left(self._launches, start_s) : bisect_right(self._launches, end_s)]

    def first_start_s(self, launched_after_s: float) -> float:
        """Return the start of the first work that was launched at or after a moment of the trace's host."""
        index = bisect_left(self._launches, launched_after_s)
        return self.works[index].start_s if index < len(self.works) else 0.0

    def done_s(self, launched_before_s: float) -> float:
        """Return when all works are done that were launched by a moment of the trace's host."""
        index = bisect_right(self._launches, launched_before_s) - 1
        return float(self._latest[index]) if index >= 0 else 0.0


def _replay(works: Sequence[DeviceWork], cut: Cut) -> list[ReplayedWork]:
    waited, usual_s = _find_waiting(works)
    free: dict[object, float] = {}
    replayed = []
    launched = [(work.launch.start_s, work) for work in works if work.launch is not None]
    for launched_s, work in sorted(launched, key=lambda pair: pair[0]):
        if is_communication(work) or cut.holds(launched_s):
            continue
        # Invariant: without anything cut out, what had not waited starts when it did. The lag of a work that had
        # waited is that of its wait, so it is held to the usual one; else the replay would keep the waits for
        # collectives that it removed.
        lag_s = work.start_s - launched_s
        if id(work) in waited:
            lag_s = min(lag_s, usual_s)
        start_s = max(free.get(work.stream, 0.0), cut.moment(launched_s) + lag_s)
        free[work.stream] = start_s + work.end_s - work.start_s
        replayed.append(ReplayedWork(work, launched_s, start_s, free[work.stream]))
    return replayed


def _find_waiting(works: Sequence[DeviceWork]) -> tuple[set[int], float]:
    """Return which works waited for another work or a collective, and the usual lag of those that did not.

    What starts on the heels of another work of its stream, or of a collective, waited for that: how long after its
    launch it could have started cannot be seen, so that the median of the others is taken.
    """
    waited: set[int] = set()
    last: dict[object, float] = {}
    collective_s = -1.0
    for work in works:
        behind = work.start_s - last.get(work.stream, -1.0) <= _TOUCHING_S
        if behind or 0 <= work.start_s - collective_s <= _RELEASED_S:
            waited.add(id(work))
        last[work.stream] = work.end_s
        if is_communication(work):
            collective_s = work.end_s
    lags = [(id(work) in waited, work.start_s - work.launch.start_s) for work in works if work.launch is not None]
    free = [lag for waits, lag in lags if not waits]
    return waited, statistics.median_low(free) if free else min((lag for _, lag in lags), default=0.0)
