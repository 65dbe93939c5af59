"""Wait to the moment: sleep while there is time, spin over the little that a sleep would overshoot."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable

import torch

SPIN_S = 60e-6
"""A sleep wakes up to this much late, with the finest timer slack, on an idle machine."""
_PR_SET_TIMERSLACK = 29
"""Of Linux' `include/uapi/linux/prctl.h`."""
_SHORT_SPINS, _LONG_CYCLES = 200, 20_000_000
"""Kernels of one cycle that are timed together, and cycles of a long one, about 10 ms; chosen by hand."""


def sharpen_timers() -> None:
    """Ask Linux to wake this thread without slack (its default is 50 us); nothing elsewhere."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    except (OSError, AttributeError):
        return


def keep_time(*, on: bool) -> None:
    """Let no other thread of this machine delay this one, or end that; nothing without the right to real-time priority.

    The ranks of a lab share its cores; behind what another rank computes a thread woken waits for the next clock tick,
    4 ms at worst, as it would not on a machine of its own.
    """
    policy, priority = (os.SCHED_FIFO, 1) if on else (os.SCHED_OTHER, 0)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, policy, os.sched_param(priority))


def wait_until(deadline_s: float) -> float:
    """Return at `deadline_s` on `time.perf_counter`, at once where it has passed; return the time then."""
    now_s = time.perf_counter()
    if deadline_s - now_s > SPIN_S:
        time.sleep(deadline_s - now_s - SPIN_S)
        now_s = time.perf_counter()
    while now_s < deadline_s:
        now_s = time.perf_counter()
    return now_s


def spinner(device: torch.device) -> Callable[[float], float]:
    """Return a function that keeps the current stream of a CUDA `device` busy for some seconds, and returns how many.

    0 where a kernel alone takes longer than was asked for. What a kernel takes that does nothing, and a cycle of
    `torch.cuda._sleep`, are measured here.
    """
    idle_s = _kernel_s(device, 1, _SHORT_SPINS)
    cycle_s = (_kernel_s(device, _LONG_CYCLES, 1) - idle_s) / _LONG_CYCLES

    def spin(seconds: float) -> float:
        if seconds <= idle_s:
            return 0.0
        torch.cuda._sleep(max(1, round((seconds - idle_s) / cycle_s)))  # type: ignore[no-untyped-call]
        return seconds

    return spin


def _kernel_s(device: torch.device, cycles: int, count: int) -> float:
    """Return the seconds of one spin of `cycles` among `count` queued behind a long one, the best of five rounds."""

    def sleep() -> None:
        for _ in range(count):
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]

    best_s = float("inf")
    for _ in range(5):
        torch.cuda._sleep(_LONG_CYCLES)  # type: ignore[no-untyped-call]
        best_s = min(best_s, time_between_events(sleep, device))
    return best_s / count


def time_between_events(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of `work` on the device; a host that has waited for it may have to wait for the GIL too."""
    stream = torch.cuda.current_stream(device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record(stream)
    work()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
