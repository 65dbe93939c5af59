"""A wrapper that is closed gives back its threads, sockets and process groups, and leaves the module as any other."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.errors import OptionError
from tests.ddpexec.ddp.schedules.training import CAPS, OPTIMIZERS
from tests.ddpexec.groups import ranks


def held() -> tuple[int, int]:
    """Return how many threads run and how many groups torch knows."""
    return len(os.listdir("/proc/self/task")), len(dist.distributed_c10d._world.pg_map)


def gradients_of(model: Any) -> list[Any]:
    model.zero_grad()
    model(torch.full((3, 4), float(dist.get_rank()))).sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return found


def closed(rank: int, scheme: str) -> tuple[list[tuple[int, int]], list[Any], str]:
    """Train and close four times; return what is held then, gradients of module and copy after it, and a refusal."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    counts = [held()]
    gradients = []
    for _ in range(4):
        made = ScheduledDataParallel(model, scheme, OPTIMIZERS["sgd"], caps=CAPS)
        for _ in range(2):
            made(torch.ones(3, 4)).sum().backward()
            made.optimizer.step()
        made.close()
        made.close()
        assert not any(layer._forward_pre_hooks for layer in model.modules())
        counts.append(held())
        gradients.append([gradients_of(model), gradients_of(copy.deepcopy(model))])
        dist.barrier()
    with pytest.raises(OptionError) as refused:
        made(torch.ones(3, 4))
    return counts, gradients, str(refused.value)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted by Linux's /proc")
@pytest.mark.parametrize("scheme", ["ddp", "zero1", "dear"])
def test_a_closed_wrapper_leaves_nothing(scheme: str) -> None:
    for counts, gradients, refusal in ranks.run_own(2, closed, scheme):
        (_, groups), *after = counts
        assert {each[1] for each in after} == {groups}
        assert len({each[0] for each in after[1:]}) == 1  # the first backward starts autograd's own threads
        for own, of_copy in gradients:
            torch.testing.assert_close(own, of_copy, rtol=0, atol=0)
        assert "closed" in refusal
