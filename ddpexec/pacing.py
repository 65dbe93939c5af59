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


def spinner(device: torch.device, probe_cycles: int = 20_000_000) -> Callable[[float], None]:
    """Return a function that keeps the current stream of a CUDA `device` busy for some seconds.

    The cycles a second of `torch.cuda._sleep` are measured here, the best of five.
    """
    best_s = float("inf")
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        torch.cuda._sleep(probe_cycles)  # type: ignore[no-untyped-call]
        end.record()
        torch.cuda.synchronize(device)
        best_s = min(best_s, start.elapsed_time(end) * 1e-3)

    def spin(seconds: float) -> None:
        if seconds > 0:
            torch.cuda._sleep(int(seconds / best_s * probe_cycles))  # type: ignore[no-untyped-call]

    return spin
