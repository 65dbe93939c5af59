"""Capture on all ranks that torchrun started at once: they share a machine as they will in the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist

from ddpexec.groups.launched import launched
from ddpexec.groups.lost import naming_the_lost
from ddpsim.workload import Workload
from ddpsim.workload.pool import pool_captures


def capture_together(capture: Callable[[str], Workload], device: str = "") -> Workload | None:
    """Return on rank 0 the iterations of all ranks as one workload, on the others None.

    Ranks begin together and record without waiting for each other.

    Args:
        capture: records this rank's iterations on the device named.
        device: `cpu`, `cuda`, or nothing for GPUs where there are any; each local rank takes the GPU of its number.

    Raises:
        InputError: as `capture`, and as `launched`.
        WorkloadError: ranks that recorded different steps.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with launched("capture", "gloo", kind) as rank:
        rank.communicator.barrier()
        own = capture(str(rank.device))
        everyones: list[Workload | None] | None = None
        if rank.communicator.rank == 0:
            everyones = [None] * dist.get_world_size()
        with naming_the_lost(rank.communicator, "the gathering of the ranks' recordings"):
            dist.gather_object(own, everyones)
        if everyones is None:
            return None
        recorded = [each for each in everyones if each is not None]
        return replace(pool_captures(recorded), ranks=len(recorded))
