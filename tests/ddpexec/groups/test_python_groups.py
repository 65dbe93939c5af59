"""DDP over process groups written in Python, beside torch's DDP over the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import LostRankError, ModelMismatchError, OptionError
from tests.ddpexec.groups import ranks
from tests.ddpexec.groups.python_groups import Later, OverGloo, Patient, bare, registered

STOCK = nn.parallel.DistributedDataParallel


class Mixed(nn.Module):
    """A sparse embedding, a norm with buffers, and a layer that some ranks leave out of some steps."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.words = nn.Embedding(10, 4, sparse=True)
        self.norm = nn.BatchNorm1d(4)
        self.some = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, indices: Tensor, skip: bool) -> Tensor:
        hidden = self.norm(self.words(indices))
        return self.head(hidden if skip else torch.tanh(self.some(hidden)))


def trained(kind: Any, group: Any, options: dict[str, Any], prepare: Callable[[Any], None]) -> list[Tensor]:
    """Return the state at the start, and the gradients of each step."""
    ddp = kind(Mixed(), process_group=group, bucket_cap_mb=0.00005, **options)
    prepare(ddp)
    taken = [tensor.clone() for tensor in ddp.state_dict().values()]
    rank = dist.get_rank()
    for step in range(4):
        ddp.zero_grad()
        indices = torch.randint(0, 10, (5,), generator=torch.Generator().manual_seed(10 * step + rank))
        with ddp.no_sync() if step == 1 else warnings.catch_warnings():
            ddp(indices, "find_unused_parameters" in options and step == rank).square().sum().backward()
        taken += [torch.zeros(()) if p.grad is None else p.grad.to_dense().clone() for p in ddp.parameters()]
    return taken + [tensor.clone() for tensor in ddp.state_dict().values()]


def nothing(ddp: Any) -> None:
    """Leave a module as it is."""


def hooked(ddp: Any) -> None:
    """Register torch's own hook over the module's group."""
    ddp.register_comm_hook(ddp.process_group, default_hooks.allreduce_hook)


def built_in(ddp: Any) -> None:
    """Register what torch's reducer has built in."""
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)


@ranks.on(2)
def test_gradients_are_torchs_over_groups_written_in_python(rank: int) -> None:
    elsewhere = OverGloo(dist.new_group()), OverGloo(dist.new_group(), Later)
    in_place = registered(), bare("by hand")
    for options, prepare in (
        ({}, nothing),
        ({"find_unused_parameters": True}, nothing),
        ({"static_graph": True}, nothing),
        ({"gradient_as_bucket_view": True}, nothing),
        ({"init_sync": False}, nothing),
        ({"broadcast_buffers": False}, hooked),
        ({}, built_in),
    ):
        # What torch reads in place after its work's `wait`, and not from its future, are the maps of used parameters.
        mapped = options.keys() & {"find_unused_parameters", "static_graph"}
        for group in in_place if mapped else (*in_place, *elsewhere):
            ours, theirs = (trained(kind, group, options, prepare) for kind in (DistributedDataParallel, STOCK))
            assert not isinstance(group, OverGloo) or group.futures > 0
            for mine, other in zip(ours, theirs, strict=True):
                assert torch.equal(mine, other), (options, prepare, group)


class Alone:
    """What tells a group that it has one rank."""

    def rank(self) -> int:
        """Return the only rank."""
        return 0

    def size(self) -> int:
        """Return one."""
        return 1


@ranks.on(2)
def test_a_module_moves_to_a_group_written_in_python(rank: int) -> None:
    """Train over the default group, then over one written in Python, then over both in turn."""
    group = OverGloo(dist.new_group())

    def move(ddp: Any) -> None:
        ddp._update_process_group(group)

    results = [trained(kind, None, {}, move) for kind in (DistributedDataParallel, STOCK)]
    assert all(map(torch.equal, *results))
    turns = trained(DistributedDataParallel, [group, OverGloo(dist.group.WORLD)], {}, nothing)
    assert all(map(torch.equal, turns, trained(STOCK, group, {}, nothing)))
    with pytest.raises(OptionError, match="give groups of the same ranks"):
        DistributedDataParallel(nn.Linear(2, 2), process_group=[group, OverGloo(Alone())])
    ddp = DistributedDataParallel(nn.Linear(2, 2), process_group=group)
    assert ddp._get_ddp_logging_data()["backend_name"] == "over-gloo"
    assert ddp.communicator.device_for(torch.device("meta")).type == "meta"


@ranks.on(2)
def test_errors_are_told_over_a_group_that_torch_does_not_know(rank: int) -> None:
    group = OverGloo(dist.new_group())
    with pytest.raises(ModelMismatchError, match="of rank 1 is float32 of shape"):
        DistributedDataParallel(nn.Linear(2, 2 + rank), process_group=group)
    ddp = DistributedDataParallel(nn.Linear(2, 2), process_group=group)
    group.failure = RuntimeError("the wire is cut: timed out")
    with pytest.raises(LostRankError, match=r"the allreduce of bucket 0 .* the wire is cut: timed out"):
        ddp(torch.ones(2, 2)).sum().backward()


@ranks.on(2)
def test_uneven_inputs_over_a_group_written_in_python(rank: int) -> None:
    """Rank 1 has fewer inputs, and those that have some left are divided by."""
    states = []
    # torch's reducer, which holds the interpreter's lock while it reads such a work, hangs here.
    for kind, group in ((DistributedDataParallel, registered(Patient)), (STOCK, None)):
        torch.manual_seed(0)
        ddp = kind(nn.Linear(3, 2), process_group=group)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        with ddp.join(divide_by_initial_world_size=False):
            for step in range(4 - 2 * rank):
                optimizer.zero_grad()
                ddp(torch.full((2, 3), step + rank + 1.0)).sum().backward()
                optimizer.step()
        states.append([tensor.clone() for tensor in ddp.state_dict().values()])
    assert all(map(torch.equal, *states))
