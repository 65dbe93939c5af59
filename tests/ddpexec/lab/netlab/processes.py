"""Processes that hold labs: what they have started, and their end whatever became of the test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpexec.lab.netlab import lab


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def namespaces_of(pid: int) -> list[str]:
    """Return the namespaces of the lab that process `pid` has built."""
    return [name for name in lab.namespaces() if name.startswith(f"{lab.PREFIX}-{pid}-")]


def running_in(pid: int) -> int:
    """Return how many processes run in the namespaces of that lab."""
    listed = [subprocess.run(["ip", "netns", "pids", name], capture_output=True) for name in namespaces_of(pid)]
    return sum(len(each.stdout.split()) for each in listed)


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"{what}: not within {seconds:g} s")
        time.sleep(0.01)


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process with the lab that it, or a child of it, holds, and remove what they leave."""
    family = [process.pid, *children(process.pid)]
    if process.poll() is None:
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    with process:
        pass

    def gone() -> bool:
        lab.remove_leftovers()
        return not any(map(namespaces_of, family))

    until(gone, 20, "a killed process left a lab that could not be removed")
