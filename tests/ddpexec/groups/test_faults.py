"""Ranks that die, raise or dawdle: the others end with a clear error, none hangs."""

from __future__ import annotations

import os
import pickle
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpexec.ddp.comm_hooks import HookWork
from ddpexec.ddp.flat import FlatBucket
from ddpexec.ddp.parameter_servers import JoinedWorks, LoopbackWork
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.groups.mpi_work import MpiWork
from ddpexec.groups.process_groups import Communicator
from ddpexec.groups.timeouts import wait_within
from ddpexec.timing.clock import offset_to_rank_zero
from ddpsim.common.errors import InputError
from tests.ddpexec.groups import ranks


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


SENDING = {
    "construction": "the exchange of parameters' names and types",
    "rebuild": "the consensus on the order of gradients",
    "backward": "the allreduce of bucket 0 (240 B)",
}


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("when", SENDING)
def test_survivors_of_a_rank_that_dies_name_it(when: str, world_size: int) -> None:
    ended = ranks.outcomes(world_size, faulty, when, "dies", group_timeout_s=8, timeout_s=40)
    assert ended.pop(1).exit_code == 9
    for rank, survivor in zip((0, 2), ended, strict=False):
        assert survivor.value is not None, survivor.error
        # A rank may have got its part of the consensus and notice in the backward that follows.
        noticed = [SENDING[when], SENDING["backward"]] if when == "rebuild" else [SENDING[when]]
        assert any(survivor.value.startswith(f"LostRankError: rank {rank}: {what} failed, as ") for what in noticed)
        # Where ranks run and as which process they tell each other in that first exchange.
        assert ("one of the other ranks" if when == "construction" else "rank 1 (process ") in survivor.value


def test_a_rank_that_raises_shows_its_own_error_and_the_others_a_lost_rank() -> None:
    survivor, raised = ranks.outcomes(2, faulty, "backward", "raises", group_timeout_s=8, timeout_s=40)
    assert "of its own making" in (raised.error or "")
    assert "LostRankError: rank 0" in survivor.value
    assert "has ended" in survivor.value
    assert "see why it died or raised in its output" in survivor.value


def test_a_failing_hook_is_no_lost_rank() -> None:
    """What a communication hook raises itself comes out as it is."""

    def failing(rank: int) -> None:
        ddp = DistributedDataParallel(Fragile(None))

        def hook(state, bucket):  # type: ignore[no-untyped-def]
            raise RuntimeError("a bug of the hook's")

        ddp.register_comm_hook(None, hook)
        with pytest.raises(RuntimeError, match=r"^a bug of the hook's"):
            ddp(torch.ones(1, 4)).sum().backward()

    ranks.run(2, failing)


def in_callbacks(rank: int, how: str) -> str:
    """Lose rank 1 while callbacks of a hook wait in all of gloo's threads, as those of torch's PowerSGD do."""
    ddp = DistributedDataParallel(Fragile(None), bucket_cap_mb=1e-5, first_bucket_mb=1e-5)

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        if rank == 1 and bucket.index() == 2:  # two others hold both threads of rank 0
            leave(how)
        flat = bucket.buffer()
        first = dist.all_reduce(torch.zeros(1), async_op=True).get_future()
        if rank == 1:  # a callback that fails while Python ends aborts the process
            return first
        return first.then(lambda _: dist.all_reduce(flat, async_op=True).get_future().wait()[0])

    ddp.register_comm_hook(None, hook)
    try:
        for _ in range(2):
            ddp(torch.ones(1, 4)).sum().backward()
    except InputError as error:
        time.sleep(1)  # for the callbacks that fail too
        return f"{type(error).__name__}: {error}"
    return "finished"


@pytest.mark.parametrize("how", ["dies", "raises"])
def test_a_rank_lost_while_a_hook_s_callbacks_wait_leaves_none_waiting(how: str) -> None:
    survivor, lost = ranks.outcomes(2, in_callbacks, how, group_timeout_s=3, timeout_s=40)
    assert survivor.value is not None, survivor.error
    assert survivor.value.startswith("LostRankError: rank 0: the communication hook's reduction of bucket ")
    assert lost.exit_code == 9 or "of its own making" in (lost.error or "")


BUCKET = FlatBucket(0, [0], [nn.Parameter(torch.ones(1))], as_view=False, batched=False)


@pytest.mark.parametrize(
    "work",
    [
        torch.futures.Future(),
        HookWork(torch.futures.Future(), BUCKET),
        LoopbackWork(torch.ones(1)),
        JoinedWorks([LoopbackWork(torch.ones(1))]),
        MpiWork("an allreduce", None),
    ],
    ids=lambda work: type(work).__name__,
)  # fmt: skip
def test_what_never_ends_is_waited_for_within_the_timeout(work: Any) -> None:
    with pytest.raises(RuntimeError, match="timed out"):
        wait_within(work, timedelta(seconds=0.05))


@pytest.mark.needs("wait")
def test_a_rank_that_dawdles_beyond_the_timeout_is_given_up() -> None:
    def dawdling(rank: int) -> str:
        impatient = dist.new_group(timeout=timedelta(seconds=3))  # the ranks run by then
        ddp = DistributedDataParallel(Fragile(None), process_group=impatient)
        dist.barrier()
        if rank != 1:
            with pytest.raises(InputError, match="rank 1 did not come within the process group's timeout"):
                ddp(torch.ones(1, 4)).sum().backward()
        dist.barrier()  # rank 1 waits here until the others have given it up
        return "gave up" if rank != 1 else "dawdled"

    ended = ranks.outcomes(3, dawdling, group_timeout_s=30, timeout_s=80)
    assert [each.value for each in ended] == ["gave up", "dawdled", "gave up"], ended


def alone(rank: int) -> None:
    dist.destroy_process_group()
    with pytest.raises(InputError, match="init_process_group"):
        DistributedDataParallel(nn.Linear(1, 1))


def test_without_a_process_group_the_error_says_so() -> None:
    ranks.run_own(1, alone)


def without_an_exchange(rank: int, how: str) -> str:
    """Lose rank 1 in the backward of a module whose making exchanged nothing between ranks."""
    ddp = DistributedDataParallel(Fragile(None), init_sync=how != "init_sync=False")
    ddp(torch.ones(1, 4)).sum().backward()
    if how == "use_process_group":
        ddp.use_process_group(dist.new_group())
    if how == "unpickled":
        ddp = pickle.loads(pickle.dumps(ddp))
    dist.barrier()
    if rank == 1:
        os._exit(9)
    try:
        ddp(torch.ones(1, 4)).sum().backward()
    except InputError as error:
        return str(error)
    return "finished"


@pytest.mark.parametrize("how", ["init_sync=False", "use_process_group", "unpickled"])
def test_a_dead_rank_is_named_though_ranks_exchanged_nothing(how: str) -> None:
    survivor, _ = ranks.outcomes(2, without_an_exchange, how, group_timeout_s=8, timeout_s=40)
    assert "as rank 1 (process " in survivor.value
    assert "has ended" in survivor.value


def in_a_barrier_or_the_clocks(rank: int, where: str) -> str:
    communicator = Communicator([dist.group.WORLD])
    communicator.introduce(torch.device("cpu"))
    if rank == 1:
        os._exit(9)
    try:
        offset_to_rank_zero(communicator) if where == "clocks" else communicator.barrier()
    except InputError as error:
        return str(error)
    return "finished"


@pytest.mark.parametrize(("where", "what"), [("clocks", "the exchange of clocks"), ("barrier", "a barrier")])
def test_a_dead_rank_is_named_outside_training_too(where: str, what: str) -> None:
    survivor, _ = ranks.outcomes(2, in_a_barrier_or_the_clocks, where, group_timeout_s=8, timeout_s=40)
    assert survivor.value.startswith(f"rank 0: {what} failed, as rank 1 (process "), survivor
