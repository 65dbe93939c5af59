"""The moments of an iteration that torch's `_get_ddp_logging_data()` tells, sampled as torch samples them.

Buckets are looked at one by one in a trace only (`ddpexec.timing.observe`). As in torch, "backward" begins with the
end of forward, so that a loss counts as backward, and what overlaps is an upper bound.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch

FIRST = 10
"""Iterations that are all sampled; after them each `rate`-th."""


class TimerEvent(IntEnum):
    """The moments of an iteration that statistics tell, in their order.

    But for the start of communication, which comes before the end of backward's computation.
    """

    FORWARD = 0
    BACKWARD = 1
    COMMUNICATION = 2
    COMPUTED = 3
    COMMUNICATED = 4


_STARTS = {
    "forward_compute_time_start": TimerEvent.FORWARD,
    "backward_compute_time_start": TimerEvent.BACKWARD,
    "backward_comm_time_start": TimerEvent.COMMUNICATION,
    "backward_compute_time_end": TimerEvent.COMPUTED,
    "backward_comm_time_end": TimerEvent.COMMUNICATED,
}
_SPANS = {
    "forward_compute_time": (TimerEvent.FORWARD, TimerEvent.BACKWARD),
    "backward_compute_time": (TimerEvent.BACKWARD, TimerEvent.COMPUTED),
    "backward_comm_time": (TimerEvent.COMMUNICATION, TimerEvent.COMMUNICATED),
    "backward_compute_comm_overlap_time": (TimerEvent.COMMUNICATION, TimerEvent.COMPUTED),
}


@dataclass(slots=True)
class _Sample:
    """Holds the moments of one iteration on the host, each 0 until it comes, and on a GPU the events that mark them."""

    iteration: int
    host_ns: list[int] = field(default_factory=lambda: [0] * len(TimerEvent))
    events: dict[TimerEvent, torch.cuda.Event] = field(default_factory=dict)

    def is_over(self) -> bool:
        """Return whether the device has passed every moment."""
        return all(event.query() for event in self.events.values())  # type: ignore[no-untyped-call]

    def measure_ns(self, begin: TimerEvent, end: TimerEvent) -> int:
        """Return nanoseconds, the device's where there is one, never less than 0; waits for it."""
        if not self.events:
            return max(0, self.host_ns[end] - self.host_ns[begin])
        start, stop = self.events[begin], self.events[end]
        start.synchronize()
        stop.synchronize()
        return max(0, round(float(start.elapsed_time(stop)) * 1e6))


class RuntimeStats:
    """Takes the moments of sampled iterations, in nanoseconds since the epoch.

    Durations on a GPU are its own, as torch's are, but the host waits for them only where they are asked for.

    Args:
        devices: of the module; several are looked at from the host.

    Attributes:
        rate: after the first `FIRST` iterations, each how-manieth is sampled.
        sampling: whether the present iteration is.
    """

    def __init__(self, devices: Sequence[torch.device] = ()) -> None:
        self.rate = 100
        self.sampling = False
        self._device = devices[0] if len(devices) == 1 and devices[0].type == "cuda" else None
        self._sample = _Sample(0)
        self._waiting: list[_Sample] = []
        self._data: dict[str, int] = {"iteration": 0}
        self._recorded = 0

    @property
    def data(self) -> dict[str, int]:
        """torch's keys, of the last sampled iteration that is over, and averages over all of those."""
        while self._waiting:
            self._record(self._waiting.pop(0))
        return self._data

    def begin(self, iteration: int) -> None:
        """Record the iteration before and start `iteration`, which counts from 1, at its start of forward."""
        if self.sampling and all(self._sample.host_ns):
            self._waiting.append(self._sample)
        while self._waiting and self._waiting[0].is_over():
            self._record(self._waiting.pop(0))
        self.sampling = iteration <= FIRST or iteration % self.rate == 0
        self._sample = _Sample(iteration)
        self.note(TimerEvent.FORWARD)

    def note(self, moment: TimerEvent) -> None:
        """Take a moment, once an iteration."""
        sample = self._sample
        if self.sampling and not sample.host_ns[moment]:
            sample.host_ns[moment] = time.time_ns()
            if self._device is not None:
                sample.events[moment] = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                sample.events[moment].record(torch.cuda.current_stream(self._device))

    def _record(self, sample: _Sample) -> None:
        data = self._data
        data["iteration"] = sample.iteration
        self._recorded += 1
        data.update({name: sample.host_ns[moment] for name, moment in _STARTS.items()})
        for name, (begin, end) in _SPANS.items():
            data[name] = sample.measure_ns(begin, end)
            total = data.get(f"avg_{name}", 0) * (self._recorded - 1) + data[name]
            data[f"avg_{name}"] = total // self._recorded
