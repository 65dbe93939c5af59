"""How ranks exchange what each expects, so that they rebuild their buckets alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator

_WHAT = "the consensus on the order of gradients"


def gather_times(times: Sequence[float], *, communicator: Communicator, device: torch.device) -> list[list[float]]:
    """Return every rank's `times`, by rank: one allgather of as many numbers as there are parameters."""
    if communicator.world_size == 1:
        return [list(times)]
    mine = torch.tensor(times, dtype=torch.float64, device=communicator.device_for(device))
    theirs = [torch.empty_like(mine) for _ in range(communicator.world_size)]
    with naming_the_lost(communicator, _WHAT):
        dist.all_gather(theirs, mine, group=communicator.main)
    return [row.tolist() for row in theirs]


def first_times(times: Sequence[float], *, communicator: Communicator, device: torch.device) -> list[list[float]]:
    """Return rank 0's `times` alone: one broadcast, which is all that its word being law needs."""
    if communicator.world_size == 1:
        return [list(times)]
    table = torch.tensor(times, dtype=torch.float64, device=communicator.device_for(device))
    with naming_the_lost(communicator, _WHAT):
        dist.broadcast(table, group_src=0, group=communicator.main)
    return [table.tolist()]
