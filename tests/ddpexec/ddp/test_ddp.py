"""The executor against one process on the joined batch, and against torch's own DDP, bit for bit."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.bucketing.plan import custom_plan
from tests.ddpexec.groups import ranks
from tests.profile import training_steps

STEPS, FEWER_STEPS = training_steps(20), 4
SAMPLES = 4

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "caps": {"bucket_cap_mb_list": [0.0005, 0.002]},
    "find unused, view, small": {
        "find_unused_parameters": True,
        "gradient_as_bucket_view": True,
        "bucket_cap_mb": 0.001,
    },
    "skip unused": {"skip_all_reduce_unused_params": True, "find_unused_parameters": True, "bucket_cap_mb": 0},
    "static graph, view, batched, small": {
        "static_graph": True,
        "gradient_as_bucket_view": True,
        "batched_grad_copy": True,
        "bucket_cap_mb": 0.0003,
    },
    "mesh": {"device_mesh": "cpu"},
    "process group": {"process_group": "all"},
}
"""What else there is, and what goes together by chance: `test_random_models` and `test_state`."""


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 90), nn.Tanh(), nn.Linear(90, 64), nn.BatchNorm1d(64), nn.Linear(64, 3)).double()


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    make = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return make(SAMPLES, 5), make(SAMPLES, 3)


def joined_steps(world_size: int, steps: int = STEPS) -> list[Tensor]:
    """Train one process on the batches of all ranks, batch norm evaluating, as its statistics would differ."""
    net = model()
    net[3].eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x, y = (torch.cat(parts) for parts in zip(*(batch(step, rank) for rank in range(world_size)), strict=True))
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def train(
    rank: int, wrapper: Any, options: dict[str, Any], *, set_to_none: bool = True, steps: int = STEPS
) -> list[Tensor]:
    net = model()
    net[3].eval()
    options = dict(options)
    if "device_mesh" in options:
        options["device_mesh"] = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    if "process_group" in options:
        options["process_group"] = torch.distributed.new_group()
    ddp = wrapper(net, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        x, y = batch(step, rank)
        optimizer.zero_grad(set_to_none=set_to_none)
        nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


@pytest.mark.parametrize(("world_size", "names"), [(2, list(OPTIONS)), (4, ["default", "find unused, view, small"])])
@ranks.on("world_size")
def test_steps_equal_one_process_and_torch(rank: int, names: list[str]) -> None:
    expected = {steps: joined_steps(torch.distributed.get_world_size(), steps) for steps in (STEPS, FEWER_STEPS)}
    for name in names:
        options = OPTIONS[name]
        for set_to_none, steps in ((True, STEPS), (False, FEWER_STEPS)):
            kept = {"set_to_none": set_to_none, "steps": steps}
            ours = train(rank, DistributedDataParallel, options, **kept)
            theirs = train(rank, nn.parallel.DistributedDataParallel, options, **kept)
            for one, other, reference in zip(ours, theirs, expected[steps], strict=True):
                torch.testing.assert_close(one, reference, rtol=1e-10, atol=1e-10, msg=name)
                assert torch.equal(one, other), name


def plans(rank: int) -> None:
    probe = DistributedDataParallel(model(), bucket_cap_mb=0.001)
    assert len(probe.reducer.plan.buckets) == 1
    x, y = batch(0, rank)
    nn.functional.mse_loss(probe(x), y).backward()
    arrived = probe.reducer.arrival
    assert sorted(arrived) == list(range(8))
    probe(x)
    policy = probe.reducer.model.policy
    assert probe.reducer.plan.groups() == rebuilt_plan(policy, BucketCaps(bucket_cap_mb=0.001), arrived).groups()
    wild = custom_plan(policy, [[3, 7], [0, 1], [2], [6, 5, 4]])
    expected = joined_steps(2)
    for one, reference in zip(train(rank, DistributedDataParallel, {"plan": wild}), expected, strict=True):
        torch.testing.assert_close(one, reference, rtol=1e-10, atol=1e-10)


def noop(rank: int) -> None:
    net = model()
    ddp = DistributedDataParallel(net, comm="noop")
    local = copy.deepcopy(net)
    x, y = batch(0, rank)
    nn.functional.mse_loss(ddp(x), y).backward()
    nn.functional.mse_loss(local(x), y).backward()
    for mine, theirs in zip(net.parameters(), local.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad / 2)


@ranks.on(2)
def test_plans_and_noop(rank: int) -> None:
    plans(rank)
    noop(rank)
