"""Processes that die with their parent."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""Of Linux' `include/uapi/linux/prctl.h`."""


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have this process sent signal `number` when its parent ends, on Linux; to be called between fork and exec."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
