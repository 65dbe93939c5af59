"""How ranks exchange what each expects, so that they rebuild their buckets alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator

_WHAT = "the consensus on the order of gradients"


def gather_times(times: Sequence[float], *, communicator: Communicator, device: torch.device) -> list[list[float]]:
    """Return every rank's `times`, by rank: one allgather of as many numbers as there are parameters."""
    if communicator.world_size == 1:
        return [list(times)]
    mine = torch.tensor(times, dtype=torch.float64, device=communicator.device_for(device))
    with naming_the_lost(communicator, _WHAT):
        theirs = communicator.gather(mine)
    return [row.tolist() for row in theirs]


def first_times(times: Sequence[float], *, communicator: Communicator, device: torch.device) -> list[list[float]]:
    """Return rank 0's `times` alone: one broadcast, which is all that its word being law needs."""
    if communicator.world_size == 1:
        return [list(times)]
    table = torch.tensor(times, dtype=torch.float64, device=communicator.device_for(device))
    with naming_the_lost(communicator, _WHAT):
        communicator.broadcast(table, 0)
    return [table.tolist()]
