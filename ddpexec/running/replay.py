"""The clock that a rank of timed layers is held to, and the recorded iteration that it replays."""

from __future__ import annotations

import copy
import itertools
import threading
import time
from collections.abc import Callable

import numpy as np
import torch

from ddpexec.timing.waiting import keep_time, sharpen_timers, spinner, wait_until
from ddpsim.workload import Workload

TOLERANCE_S, TOLERANCE_SHARE = 0.2e-3, 0.01
"""Seconds, and share of its time, from which on a gradient counts as late; chosen by hand."""
COPIED_AT_ONCE = 1 << 20
"""Bytes of a gradient that is in its bucket within about the time that a thread may be late."""


class Replay:
    """A replay knows the recorded iteration in force, and the clock that the rank is held to.

    Attributes:
        workload: on one clock, scaled.
        device: where parameters live.
        iteration: which recorded iteration is replayed.
        start_s: when the phase in force began, on `time.perf_counter`.
        running: whether a phase has begun and not ended.
        lateness_s: of each gradient of the last backward against its recorded time; NaN for one without a gradient.
            On a CPU only, as the next.
        gradients, late: how many there were in all, and how many of them came later than `TOLERANCE_S` and
            `TOLERANCE_SHARE` of their time allow.
    """

    def __init__(
        self, workload: Workload, device: torch.device, rank: int, seed: int, *, in_order: bool = False
    ) -> None:
        self.workload, self.device = workload, device
        self.iteration = 0
        self._coming = itertools.cycle(range(workload.iterations)) if in_order else None
        self.running = self._keeps_time = False
        self.lateness_s = np.full(len(workload.parameters), np.nan)
        self.gradients = self.late = 0
        self._draws = np.random.default_rng([seed, rank])
        self._orders = [_gradients_in_order(workload, k) for k in range(workload.iterations)]
        self.start_s = 0.0
        self._on_device_s = 0.0
        self._paused_s: float | None = None
        self._spin = spinner(device) if device.type == "cuda" else None
        self._thread = threading.get_ident()
        sharpen_timers()

    def of_thread(self) -> Replay:
        """Return itself in the rank's own thread, and a copy with a clock of its own in another, as in a server's."""
        if threading.get_ident() == self._thread:
            return self
        other = copy.copy(self)
        other.running = other._keeps_time = False
        return other

    def begin_iteration(self) -> list[int]:
        """Take or draw the next recorded iteration and return its gradients' parameters in arrival order."""
        drawn = self._draws.integers(self.workload.iterations) if self._coming is None else next(self._coming)
        self.iteration = int(drawn)
        return self._orders[self.iteration]

    def begin(self) -> None:
        """Start the clock of a phase, which nothing else on this machine is to delay."""
        self._keep_time(on=True)
        self.running, self._paused_s = True, None
        self.start_s = time.perf_counter()
        self._on_device_s = 0.0

    def begin_once(self) -> None:
        """Start the clock of a phase, as of a backward whose loss did not."""
        if not self.running:
            self.begin()

    def reach(self, seconds: float) -> float:
        """Return `seconds` after the phase's start, or keep a GPU busy up to there; return how late that was."""
        if self._spin is not None:
            self._on_device_s += self._spin(seconds - self._on_device_s)
            return 0.0
        return wait_until(self.start_s + seconds) - self.start_s - seconds

    def beside(self, work: Callable[[], bool]) -> None:
        """Do `work`; where it says that it held the rank up, the clock of the phase stood still meanwhile.

        What holds nothing up takes some of the time to the next layer, as hooks do.
        """
        start_s, on_device_s, running = self.start_s, self._on_device_s, self.running
        began_s = time.perf_counter()
        held_up = work()
        self._keep_time(on=running)
        self.start_s = start_s + (time.perf_counter() - began_s if held_up else 0.0)
        self._on_device_s, self.running = on_device_s, running

    def pause(self) -> None:
        """Let the clock of the phase stand still from now on, while the rank waits for something else."""
        if self._paused_s is None:
            self._keep_time(on=False)
            self._paused_s = time.perf_counter()

    def resume(self) -> None:
        """Let the clock of the phase go on."""
        if self._paused_s is not None:
            self.start_s += time.perf_counter() - self._paused_s
            self._paused_s = None
            self._keep_time(on=self.running)

    def end(self, seconds: float) -> None:
        """Reach the end of a phase, `seconds` after its start."""
        self.reach(seconds)
        self.running = False
        self._keep_time(on=False)

    def end_backward(self) -> None:
        """Reach the end of backward: take what it took after its last gradient."""
        self.end(float(self.workload.backward.device_s[self.iteration]))

    def reach_gradient(self, parameter: int) -> None:
        """Wait for the recorded time of a gradient; then what copies for long shares the cores again."""
        self._keep_time(on=True)
        ready_s = float(self.workload.gradient_ready_s[self.iteration, parameter])
        late_s = self.reach(ready_s)
        if self._spin is None:
            self.lateness_s[parameter] = late_s
            self.gradients += 1
            self.late += late_s > max(TOLERANCE_S, TOLERANCE_SHARE * ready_s)
        if self.workload.parameters[parameter].size_bytes > COPIED_AT_ONCE:
            self._keep_time(on=False)

    def _keep_time(self, *, on: bool) -> None:
        if on != self._keeps_time and self._spin is None:
            self._keeps_time = on
            keep_time(on=on)


def _gradients_in_order(workload: Workload, iteration: int) -> list[int]:
    ready = workload.gradient_ready_s[iteration]
    return [index for index in workload.arrival_order(iteration) if not np.isnan(ready[index])]
