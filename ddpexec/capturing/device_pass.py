"""A short pass under the profiler: how long the device is busy in each phase, and where the host waits for it.

Nothing is timed under it otherwise: the profiler slows the host. Kernel durations hardly change.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ddpsim.workload.kineto.device_use import DeviceUse, device_use

PREFIX = "ddpexec:"


class DevicePass:
    """Profiles a few iterations whose phases are marked one after the other.

    Args:
        device: a GPU, which need not be the current one.

    Attributes:
        iterations: how many are profiled.
        done: whether they are over.
    """

    iterations = 2

    def __init__(self, device: torch.device) -> None:
        self.done = False
        self._device = device
        self._profiler: profile | None = None
        self._mark: record_function | None = None
        self._left = self.iterations
        self._use: DeviceUse | None = None

    def start(self) -> None:
        """Begin with the next iteration."""
        if self._profiler is None and not self.done:
            torch.cuda.synchronize(self._device)
            self._profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            self._profiler.start()

    def mark(self, phase: str) -> None:
        """Begin `phase`, which ends the one before."""
        if self._profiler is None:
            return
        self._close_mark()
        self._mark = record_function(PREFIX + phase)
        self._mark.__enter__()  # type: ignore[no-untyped-call]

    def end_iteration(self) -> None:
        """Count an iteration; after the last one read the profile."""
        if self._profiler is None or self._mark is None:
            return
        self._close_mark()
        self._left -= 1
        if self._left == 0:
            profiler, self._profiler = self._profiler, None
            torch.cuda.synchronize(self._device)
            profiler.stop()
            self._use = device_use(_events(profiler), PREFIX)
            self.done = True

    def stop(self) -> None:
        """End the profiler early, where it still runs."""
        if self._profiler is not None:
            self._close_mark()
            self._profiler.stop()
            self._profiler = None

    def use(self) -> DeviceUse:
        """Return what the pass found."""
        assert self._use is not None
        return self._use

    def _close_mark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None


def _events(profiler: profile) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, object]] = json.loads(path.read_text())["traceEvents"]
        return events
