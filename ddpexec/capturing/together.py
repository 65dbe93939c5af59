"""Capture alone, or on all ranks that torchrun started at once: they share a machine as they will in the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist

from ddpexec.groups.launched import join_launched
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.timing.other_work import gather_other_work
from ddpsim.common.other_work import OtherWork, ProcessorClock, find_other_work
from ddpsim.workload import Workload
from ddpsim.workload.pool import pool_captures


def capture_together(capture: Callable[[str], Workload], device: str = "") -> Workload | None:
    """Return on rank 0 the iterations of all ranks as one workload, on the others None.

    Ranks begin together and record without waiting for each other.

    Args:
        capture: records this rank's iterations on the device named.
        device: `cpu`, `cuda`, or nothing for GPUs where there are any; each local rank takes the GPU of its number.

    Raises:
        InputError: as `capture`, and as `join_launched`.
        WorkloadError: ranks that recorded different steps.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with join_launched("capture", "gloo", kind) as rank:
        rank.communicator.barrier()
        clock = ProcessorClock()
        own = capture(str(rank.device))
        other = gather_other_work(clock, rank.communicator)
        everyones: list[Workload | None] | None = None
        if rank.communicator.rank == 0:
            everyones = [None] * dist.get_world_size()
        with name_lost_ranks(rank.communicator, "the gathering of the ranks' recordings"):
            dist.gather_object(own, everyones)
        if everyones is None:
            return None
        recorded = [each for each in everyones if each is not None]
        return beside(replace(pool_captures(recorded), ranks=len(recorded)), other)


def capture_alone(capture: Callable[[str], Workload], device: str = "") -> Workload:
    """Return what this process alone records, as `capture` does."""
    clock = ProcessorClock()
    return beside(capture(device), find_other_work([clock.since()]))


def beside(workload: Workload, other: OtherWork | None) -> Workload:
    """Return a capture with the other work that the machine did meanwhile."""
    told = {} if other is None else other.document()
    return replace(workload, provenance={**workload.provenance, **told})
