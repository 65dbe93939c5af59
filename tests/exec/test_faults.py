"""Ranks that die, raise or dawdle: the others end with a clear error, none hangs."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpexec.ddp import DistributedDataParallel
from ddpsim.errors import InputError
from tests.exec import ranks


def leave(how: str) -> None:
    if how == "dies":
        os._exit(9)
    if how == "raises":
        raise ValueError("of its own making")
    time.sleep(30)


class Fragile(nn.Module):
    """Leaves during the construction's broadcast, before a rebuild, or in backward, where this rank is to."""

    def __init__(self, how: str | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        if self.how is not None:
            x.register_hook(lambda _: leave(str(self.how)))
        return x


def faulty(rank: int, when: str, how: str) -> str:
    bad = rank == 1
    dist.barrier()  # until then ranks are still connecting, which is not what is tested
    if bad and when == "construction":
        leave(how)
    try:
        ddp = DistributedDataParallel(Fragile(how if bad and when == "backward" else None))
        for step in range(3):
            if bad and when == "rebuild" and step == 1:
                leave(how)
            ddp(torch.ones(1, 4)).sum().backward()
    except (InputError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "finished"


@pytest.mark.parametrize("when", ["construction", "rebuild", "backward"])
def test_survivors_of_a_rank_that_dies_end_with_an_error(when: str) -> None:
    survivor, dead = ranks.outcomes(2, faulty, when, "dies", group_timeout_s=8, timeout_s=40)
    assert dead.exit_code == 9
    assert survivor.value is not None
    assert survivor.value != "finished"
    if when == "backward":
        assert "LostRankError: the allreduce of bucket 0" in survivor.value
        assert "a rank died" in survivor.value


def test_a_rank_that_raises_shows_its_own_error_and_the_others_a_lost_rank() -> None:
    survivor, raised = ranks.outcomes(2, faulty, "backward", "raises", group_timeout_s=8, timeout_s=40)
    assert "of its own making" in (raised.error or "")
    assert "LostRankError" in survivor.value


def test_a_rank_that_dawdles_beyond_the_timeout_is_given_up() -> None:
    def slow(rank: int) -> str:
        started = time.perf_counter()
        ddp = DistributedDataParallel(Fragile(None))
        if rank == 1:
            time.sleep(4)
            return "slow"
        with pytest.raises(InputError, match="slower than the process group's timeout"):
            ddp(torch.ones(1, 4)).sum().backward()
        assert time.perf_counter() - started < 30
        return "gave up"

    assert [o.value for o in ranks.outcomes(2, slow, group_timeout_s=2, timeout_s=40)] == ["gave up", "slow"]


def alone(rank: int) -> None:
    dist.destroy_process_group()
    with pytest.raises(InputError, match="init_process_group"):
        DistributedDataParallel(nn.Linear(1, 1))


def test_without_a_process_group_the_error_says_so() -> None:
    ranks.run(1, alone)
