"""Schemes carried out: what is moved and when, gradients left out, ranks that are lost or disagree, refusals."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from ddpexec.ddp import lanes
from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.errors import ExecutionError, LostRankError, ModelMismatchError
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.workload.files import save_workload
from tests.ddpexec.ddp.schedules.training import OPTIMIZERS, SCHEMES, apart, loss_of, mine, take_step, wrapped
from tests.ddpexec.groups import ranks
from tests.ddpexec.small import small_workload


@pytest.mark.parametrize("world", [2, 4])
@ranks.on("world")
def test_bytes_that_a_run_moves_are_its_schedule_s(rank: int) -> None:
    """Bytes that three steps hand to the backend or send in rings, beside what is to be moved."""
    ranks_, found = torch.distributed.get_world_size(), {}
    begin, send = lanes.begin, torch.distributed.ProcessGroup.send
    for scheme in SCHEMES:
        made, handed = wrapped(rank, scheme), []

        def watched(group: Any, operation: Operation, tensor: Any, handed: list[Any] = handed) -> Any:
            handed.append((operation, tensor.nbytes))
            return begin(group, operation, tensor)

        sent: list[int] = []

        def watched_send(group: Any, tensors: list[Any], to: int, tag: int, sent: list[int] = sent) -> Any:
            sent.extend(tensor.nbytes for tensor in tensors)
            return send(group, tensors, to, tag)

        sends = mock.patch("torch.distributed.ProcessGroup.send", watched_send)
        with sends, mock.patch("ddpexec.ddp.lanes.begin", watched):
            for number in range(3):
                take_step(made, number, rank)
            made.complete()
        allreduced = sum(size for _, size in handed)
        expected = sum(m.size_bytes for m in made.schedule if m.op is Operation.ALLREDUCE)
        # A ring's parts are whole elements, and as gloo's allreduce divides them: at most one for each segment.
        rings = [m for m in made.schedule if m.op is not Operation.ALLREDUCE]
        due = 3 * sum(m.op.sent(ranks_) * m.size_bytes for m in rings)
        found[scheme] = allreduced - 3 * expected, sum(sent) - due, 3 * len(rings) * 2 * ranks_ * 8
    for scheme, (allreduced, in_rings, padding) in found.items():
        assert allreduced == 0, scheme
        assert 0 <= in_rings <= padding, scheme


class Tied(nn.Module):
    """Uses the weights of a module that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True).double()
        self.uncalled = nn.Linear(6, 3).double()

    def forward(self, inputs: Any) -> Any:
        attended, _ = self.attention(inputs[None], inputs[None], inputs[None])
        return nn.functional.linear(attended[0], self.uncalled.weight, self.uncalled.bias)


@ranks.on(2)
def test_weights_of_a_module_that_is_never_called_are_updated_before_whoever_uses_them(rank: int) -> None:
    made = ScheduledDataParallel(Tied(), "priority", OPTIMIZERS["sgd"])
    reference = ScheduledDataParallel(Tied(), "flat", OPTIMIZERS["sgd"])
    for number in range(5):
        take_step(made, number, rank)
        take_step(reference, number, rank)
    assert apart(made.module.state_dict().values(), reference.module.state_dict().values()) < 1e-12


def hang(ended: Path) -> None:
    """Come back after 12 s, or once both survivors have ended: nothing more happens then."""
    until_s = time.monotonic() + 12
    while len(list(ended.iterdir())) < 2 and time.monotonic() < until_s:
        time.sleep(0.05)


def losing(rank: int, scheme: str, how: str, ended: Path) -> tuple[str, float]:
    """Train, or serve, until rank 1 ends or hangs; return what was said then, and how long it was waited for."""
    made, begin = wrapped(rank, scheme), time.monotonic()
    try:
        if made.serves:
            made.serve()
        for number in range(5000):  # a trainer that waits for no other goes on until its server has gone
            if rank == 1 and number == 7:
                if how == "hangs":
                    hang(ended)
                os._exit(17)
            begin = time.monotonic()
            take_step(made, number, rank)
    except ExecutionError as error:
        seconds = time.monotonic() - begin
        (ended / str(rank)).touch()
        return f"{type(error).__name__}: {error}", seconds
    return "no error", 0.0


SERVED = ["parameter-server", "parameter-server:async", "parameter-server:beside=1", "parameter-server:beside=1,async"]


@pytest.mark.needs("wait")
@pytest.mark.shares_clock  # a rank is told by timeouts of seconds that another has gone
@pytest.mark.parametrize(
    ("how", "scheme"),
    [*itertools.product(("ends", "hangs"), ("priority", "dear", "zero1")), *(("ends", scheme) for scheme in SERVED)],
)
def test_a_lost_rank_never_holds_the_others_up(how: str, scheme: str, tmp_path: Path) -> None:
    survivors = ranks.outcomes(3, losing, scheme, how, tmp_path, group_timeout_s=3)
    for rank in (0, 2):
        said, seconds = survivors[rank].value
        assert said.startswith(LostRankError.__name__), said
        if scheme not in SERVED:
            assert f"rank {rank}: the " in said
            assert seconds < 12, "a rank that hangs comes back after 12 s"


@ranks.on(3)
def test_ranks_that_disagree_say_so_on_each(rank: int) -> None:
    with pytest.raises(ModelMismatchError, match="messages, while rank 1 has"):
        wrapped(rank, "dear" if rank else "priority")


@pytest.mark.needs("wait")
def test_an_order_that_is_not_everybody_s_ends_every_rank_with_one_message(tmp_path: Path) -> None:
    save_workload(small_workload(), tmp_path / "w.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ddpexec"]
    options = ["--workload", str(tmp_path / "w.json"), "--out", str(tmp_path / "out"), "--bucket-cap-mb", "0.02"]
    done = subprocess.run(
        [*command, "run", *options, "--scheme", "tests.ddpexec.ddp.schedules.own:by_rank"],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("error: message 0") == 1, done.stderr
    assert done.stderr.count("exitcode  : 2") == 2 or "exitcode: 2" in done.stderr
    assert "Traceback" not in done.stderr.partition("error: ")[2].partition("\n")[0]


@ranks.on(2)
def test_a_scheme_of_one_s_own_is_carried_out(rank: int) -> None:
    made, sent = wrapped(rank, "tests.ddpexec.ddp.schedules.own:every_second"), 0
    for number in range(4):
        loss_of(made, *mine(number, rank)).backward()
        sent += len(made.reducer.launcher.launched)
        if number % 2:
            made.optimizer.step()
            made.optimizer.zero_grad()
    made.complete()
    assert sent == 2 * len(made.schedule)


@ranks.on(1)
def test_what_cannot_be_carried_out_is_refused(rank: int) -> None:
    for scheme in ("dpp", "json:dumps"):
        with pytest.raises(InputError):
            wrapped(rank, scheme)
    sparse = nn.Sequential(nn.Embedding(10, 3, sparse=True))
    with pytest.raises(ExecutionError, match=r"0\.weight: its gradient is sparse"):
        ScheduledDataParallel(sparse, "flat", OPTIMIZERS["sgd"])
    with pytest.raises(ExecutionError, match=r"threads of one process; use torch\.nn\.DataParallel"):
        wrapped(rank, "dataparallel")
    made = wrapped(rank, "dear")
    with pytest.raises(ExecutionError, match="takes no closure"):
        made.optimizer.step(lambda: 0.0)
    with pytest.raises(ExecutionError, match="sharded"):
        wrapped(rank, "zero1").optimizer.state_dict()


@pytest.mark.parametrize("scheme", ["ddp", "zero2", "priority"])
@ranks.on(2)
def test_what_nobody_holds_any_more_is_freed_with_its_threads(rank: int, scheme: str) -> None:
    made = wrapped(rank, scheme)
    take_step(made, 0, rank)
    made.complete()
    gone = weakref.ref(made)
    del made
    gc.collect()
    until_s = time.monotonic() + 5
    while (left := [t.name for t in threading.enumerate() if t.name == "ddpexec lane"]) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert gone() is None
    assert left == []


@ranks.on(2)
def test_a_buffer_is_held_back_until_its_cycle(rank: int) -> None:
    # By message, for two are in flight, and on a busy machine the second may begin before the first.
    handed: dict[int, float] = {}
    began: dict[int, float] = {}
    launch, begin = lanes.CommunicationStream.launch, lanes.begin

    def launched(lane: Any, operation: Any, tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        handed[tensor.data_ptr()] = time.monotonic()
        return launch(lane, operation, tensor, *arguments, **named)

    def begun(group: Any, operation: Any, tensor: torch.Tensor) -> Any:
        began[tensor.data_ptr()] = time.monotonic()
        return begin(group, operation, tensor)

    with mock.patch.object(lanes.CommunicationStream, "launch", launched), mock.patch.object(lanes, "begin", begun):
        made = wrapped(rank, "horovod:cycle=30ms", learn=3)
        for number in range(5):
            handed.clear()
            began.clear()
            take_step(made, number, rank)
    delays = [message.delay_s for message in made.schedule]
    assert delays
    for planned_s, (message, handed_s) in zip(delays, handed.items(), strict=True):
        assert 0 < planned_s <= began[message] - handed_s


@ranks.on(2)
def test_a_group_s_own_operations_leave_each_rank_its_part(rank: int) -> None:
    found = []
    for operation in (Operation.REDUCE_SCATTER, Operation.ALL_GATHER, Operation.ALLREDUCE):
        tensor = torch.arange(4.0) + 10 * rank
        lanes.begin(torch.distributed.group.WORLD, operation, tensor).wait()
        found.append(tensor.tolist())
    scattered, gathered, summed = found
    assert scattered[2 * rank : 2 * rank + 2] == [10.0, 12.0, 14.0, 16.0][2 * rank : 2 * rank + 2]
    assert gathered == [0.0, 1.0, 12.0, 13.0]
    assert summed == [10.0, 12.0, 14.0, 16.0]
