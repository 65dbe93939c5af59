"""What ranks must decide alike: the arrival order from which buckets are rebuilt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ddpexec.process_groups import Communicator


def times_of_all(times: Sequence[float], communicator: Communicator, device: torch.device) -> list[list[float]]:
    """Return every rank's `times`, by rank: one all-gather of as many float64 as there are parameters."""
    if communicator.world_size == 1 or communicator.noop:
        return [list(times)]
    mine = torch.tensor(times, dtype=torch.float64, device=communicator.device_for(device))
    tables = [torch.empty_like(mine) for _ in range(communicator.world_size)]
    dist.all_gather(tables, mine, group=communicator.main)
    return [table.tolist() for table in tables]
