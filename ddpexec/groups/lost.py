"""Which rank is gone when a collective fails: backends name an address at best."""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist

from ddpexec.errors import ExecutionError, LostRankError

if TYPE_CHECKING:
    from ddpexec.groups.process_groups import Communicator

PATIENCE_S = 0.5
"""How long to look for an ended process: its connections close shortly before it has ended."""
ANSWER_S = 1.0
"""How long ranks that time out wait for each other to say so; they do so at nearly the same moment."""
_SIGNS = ("gloo", "NCCL", "Connection", "onnection closed", "imed out", "imeout", "collective", "recvValue", "peer")

_GLOO = re.compile(r"^\[\S+:\d+\] |\. This is typically caused by .*")
"""The source line and the advice in gloo's messages."""

Place = tuple[int, int]
"""The machine (and its process namespace) as a number, and the process on it."""


def here() -> Place:
    """Return where this process is."""
    return zlib.crc32(_machine().encode()), os.getpid()


@contextmanager
def naming_the_lost(communicator: Communicator, what: str) -> Iterator[None]:
    """Turn a failure of `what`, a collective, into a `LostRankError` that names this rank and those that have ended."""
    try:
        yield
    except ExecutionError:
        raise
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _SIGNS):
            raise
        raise lost(communicator, what, error) from error


def lost(communicator: Communicator, what: str, error: Exception) -> LostRankError:
    """Return the error for a collective that failed with `error`."""
    late = "imed out" in str(error) or "imeout" in str(error)
    reason = _GLOO.sub("", " ".join(str(error).split()))[:300]
    failed = f"rank {communicator.rank}: {what} failed, as"
    if ended := ended_ranks(communicator.places, 0 if late else PATIENCE_S):
        named = ", ".join(f"rank {rank} (process {communicator.places[rank][1]})" for rank in ended)
        have = "has" if len(ended) == 1 else "have"
        return LostRankError(
            f"{failed} {named} {have} ended: {reason}", remedy="see why it died or raised in its output"
        )
    silent = _silent_ranks(communicator) if late else []
    if silent:
        named = ", ".join(f"rank {rank}" for rank in silent)
        return LostRankError(
            f"{failed} {named} did not come within the process group's timeout: {reason}",
            remedy="see what it was doing; give a longer timeout where it only needs more time",
        )
    others = ", ".join(str(rank) for rank in range(communicator.world_size) if rank != communicator.rank)
    return LostRankError(
        f"{failed} one of the other ranks ({others}) died, raised or did not come within the timeout: {reason}",
        remedy="see their output",
    )


def ended_ranks(places: Sequence[Place], patience_s: float) -> list[int]:
    """Return the ranks on this machine whose process has ended; waits up to `patience_s` for the first."""
    machine, _ = here()
    until = time.monotonic() + patience_s
    while True:
        ended = [rank for rank, (where, process) in enumerate(places) if where == machine and _has_ended(process)]
        if ended or time.monotonic() >= until:
            return ended
        time.sleep(0.02)


def _silent_ranks(communicator: Communicator) -> list[int]:
    """Ask the ranks by way of the store which of them has timed out too; return those that do not answer."""
    members = dist.get_process_group_ranks(communicator.main)
    # By group, for one that has timed out is of no more use, and its answers are none to the next.
    name = communicator.main.group_name
    keys = {rank: f"ddpexec/timed_out/{name}/{member}" for rank, member in enumerate(members)}
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(keys.pop(communicator.rank), "1")
        until = time.monotonic() + ANSWER_S
        while keys and time.monotonic() < until:
            time.sleep(0.05)
            keys = {rank: key for rank, key in keys.items() if not store.check([key])}
    except RuntimeError:  # the store is gone, and with it perhaps the rank that kept it
        return []
    return sorted(keys)


def _has_ended(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return os.path.isdir("/proc/self")
    except OSError:
        return False


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
