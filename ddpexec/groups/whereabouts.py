"""Where ranks run, and which of their processes on this machine have ended or are stopped."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping

Place = tuple[int, int]
"""The machine (and its process namespace) as a number, and the process on it."""
Places = Mapping[int, Place]
"""The places of ranks, by rank; those that are not known are missing."""


def find_place() -> Place:
    """Return where this process is."""
    return zlib.crc32(_machine().encode()), os.getpid()


def find_ended_ranks(places: Places) -> list[int]:
    """Return the ranks on this machine whose process has ended."""
    return [rank for rank, process in _neighbours(places) if _state(process) in ("Z", "X", "")]


def find_stopped_ranks(places: Places) -> list[int]:
    """Return the ranks on this machine whose process is stopped, by a signal or by a debugger."""
    return [rank for rank, process in _neighbours(places) if _state(process) in ("T", "t")]


def _neighbours(places: Places) -> list[tuple[int, int]]:
    machine, _ = find_place()
    return [(rank, process) for rank, (where, process) in sorted(places.items()) if where == machine]


def _state(process: int) -> str:
    """Return the letter of a process's state as in `proc(5)`, nothing where it is gone, `?` where nobody can tell."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "" if os.path.isdir("/proc/self") else "?"
    except OSError:
        return "?"


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
