"""What ranks must decide alike: the arrival order from which buckets are rebuilt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ddpexec.process_groups import Communicator


def of_rank_zero(order: Sequence[int], communicator: Communicator, device: torch.device) -> list[int]:
    """Return rank 0's `order` on every rank: one broadcast of as many integers as there are parameters."""
    if communicator.world_size == 1:
        return list(order)
    table = torch.tensor(order, dtype=torch.int64, device=communicator.device_for(device))
    dist.broadcast(table, group_src=0, group=communicator.main)
    return [int(index) for index in table.tolist()]
