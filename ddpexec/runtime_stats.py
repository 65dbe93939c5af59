"""The moments of an iteration that torch's `_get_ddp_logging_data()` tells, sampled as torch samples them.

Buckets are looked at one by one in a trace only (`ddpexec.observe`). As in torch, "backward" begins with the end of
forward, so that a loss counts as backward, and what overlaps is an upper bound.
"""

from __future__ import annotations

import time
from enum import IntEnum

FIRST = 10
"""Iterations that are all sampled; after them each `rate`-th."""


class Moment(IntEnum):
    """In their order, but for the start of communication, which comes before the end of backward's computation."""

    FORWARD = 0
    BACKWARD = 1
    COMMUNICATION = 2
    COMPUTED = 3
    COMMUNICATED = 4


_STARTS = {
    "forward_compute_time_start": Moment.FORWARD,
    "backward_compute_time_start": Moment.BACKWARD,
    "backward_comm_time_start": Moment.COMMUNICATION,
    "backward_compute_time_end": Moment.COMPUTED,
    "backward_comm_time_end": Moment.COMMUNICATED,
}
_SPANS = {
    "forward_compute_time": (Moment.FORWARD, Moment.BACKWARD),
    "backward_compute_time": (Moment.BACKWARD, Moment.COMPUTED),
    "backward_comm_time": (Moment.COMMUNICATION, Moment.COMMUNICATED),
    "backward_compute_comm_overlap_time": (Moment.COMMUNICATION, Moment.COMPUTED),
}


class RuntimeStats:
    """Takes the moments of sampled iterations, in nanoseconds since the epoch.

    Attributes:
        rate: after the first `FIRST` iterations, each how-manieth is sampled.
        sampling: whether the present iteration is.
        data: torch's keys, of the last sampled iteration that is over, and averages over all of those.
    """

    def __init__(self) -> None:
        self.rate = 100
        self.sampling = False
        self.data: dict[str, int] = {"iteration": 0}
        self._moments = [0] * len(Moment)
        self._recorded = 0

    def begin(self, iteration: int) -> None:
        """Record the iteration before and start `iteration`, which counts from 1, at its start of forward."""
        if self.sampling and all(self._moments):
            self._record(iteration - 1)
        self.sampling = iteration <= FIRST or iteration % self.rate == 0
        self._moments = [0] * len(Moment)
        self.note(Moment.FORWARD)

    def note(self, moment: Moment) -> None:
        """Take a moment, once an iteration."""
        if self.sampling and not self._moments[moment]:
            self._moments[moment] = time.time_ns()

    def _record(self, iteration: int) -> None:
        moments, data = self._moments, self.data
        data["iteration"] = iteration
        self._recorded += 1
        data.update({name: moments[moment] for name, moment in _STARTS.items()})
        for name, (begin, end) in _SPANS.items():
            data[name] = max(0, moments[end] - moments[begin])
            total = data.get(f"avg_{name}", 0) * (self._recorded - 1) + data[name]
            data[f"avg_{name}"] = total // self._recorded
