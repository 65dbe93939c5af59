from __future__ import annotations

import torch
import torch.distributed as dist

from ddpexec.schedules.lanes import begin
from ddpsim.operations import Operation
from tests.ddpexec.groups import ranks


def parts(rank: int) -> list[list[float]]:
    group, found = dist.group.WORLD, []
    assert group is not None
    for operation in (Operation.REDUCE_SCATTER, Operation.ALL_GATHER, Operation.ALLREDUCE):
        tensor = torch.arange(4.0) + 10 * rank
        begin(group, operation, tensor).wait()
        found.append(tensor.tolist())
    return found


def test_a_group_s_own_operations_leave_each_rank_its_part() -> None:
    (scattered, gathered, summed), (others, _, _) = ranks.run(2, parts)
    assert scattered[:2] == [10.0, 12.0]
    assert others[2:] == [14.0, 16.0]
    assert gathered == [0.0, 1.0, 12.0, 13.0]
    assert summed == [10.0, 12.0, 14.0, 16.0]
