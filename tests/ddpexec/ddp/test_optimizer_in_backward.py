"""Optimizers that step in backward: torch's `_apply_optimizer_in_backward` and `_register_fused_optim`."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.optim import _apply_optimizer_in_backward

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from tests.ddpexec.groups import ranks
from tests.ddpexec.streams import no_streams
from tests.profile import training_steps

STOCK = nn.parallel.DistributedDataParallel
STEPS = training_steps(10)
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
}


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 30), nn.Tanh(), nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 2)).double()


def batch(step: int, rank: int) -> Any:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * step + rank), dtype=torch.float64)


def joined(world_size: int, name: str) -> list[Any]:
    """Train one process on the batches of all ranks, with an ordinary optimizer."""
    net = model()
    kind, options = OPTIMIZERS[name]
    optimizer = kind(net.parameters(), **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        net(torch.cat([batch(step, rank) for rank in range(world_size)])).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def in_backward(kind: Any, rank: int, name: str, options: dict[str, Any], before: bool) -> list[Any]:
    optimizer, arguments = OPTIMIZERS[name]
    net = model()
    if before:
        _apply_optimizer_in_backward(optimizer, net.parameters(), arguments)
    ddp = kind(net, **options)
    if not before:
        _apply_optimizer_in_backward(optimizer, ddp.parameters(), arguments)
    for step in range(STEPS):
        ddp(batch(step, rank)).square().mean().backward()
        assert all(parameter.grad is None for parameter in net.parameters())
    return [parameter.detach() for parameter in net.parameters()]


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.needs("minutes"))])
@ranks.on("world_size")
def test_steps_in_backward_equal_torchs_and_those_of_one_process(rank: int, world_size: int) -> None:
    no_streams()
    count = 0
    extras: tuple[dict[str, Any], ...] = (
        {}, {"bucket_cap_mb": 0.001}, {"static_graph": True}, {"find_unused_parameters": True},
    )  # fmt: skip
    for name, view, extra in itertools.product(OPTIMIZERS, (False, True), extras):
        if extra and name == "adam":
            continue
        expected = joined(world_size, name)
        options = {**extra, "gradient_as_bucket_view": view}
        for before in (False, True):
            ours = in_backward(DistributedDataParallel, rank, name, options, before)
            theirs = in_backward(STOCK, rank, name, options, before)
            for mine, other, reference in zip(ours, theirs, expected, strict=True):
                torch.testing.assert_close(mine, reference, rtol=1e-9, atol=1e-9)
                assert torch.equal(mine, other), (name, options, before)
            count += 1
    assert count == 20


@pytest.mark.parametrize("as_view", [False, True])
@ranks.on(2)
def test_the_other_parameters_get_averages_and_what_nobody_uses_is_not_stepped(rank: int, as_view: bool) -> None:
    """Some parameters step in backward, the others get averaged gradients; one that nobody uses stays."""
    net = model()
    net.unused = nn.Parameter(torch.ones(3, 3).double())
    stepping = [*net[0].parameters(), net.unused]
    _apply_optimizer_in_backward(torch.optim.SGD, stepping, {"lr": 0.1, "weight_decay": 0.5})
    options = {"find_unused_parameters": True, "gradient_as_bucket_view": as_view, "bucket_cap_mb": 0.001}
    ddp = DistributedDataParallel(net, **options)
    local = model()
    for _ in range(2):
        net[2].zero_grad()
        local.zero_grad()
        with ddp.no_sync():
            ddp(batch(7, rank)).square().mean().backward()
        ddp(batch(8, rank)).square().mean().backward()
        for r in range(2):
            for step in (7, 8):
                (local(batch(step, r)).square().mean() / 2).backward()
        torch.testing.assert_close(net[2].weight.grad, local[2].weight.grad, rtol=1e-9, atol=1e-9)
        with torch.no_grad():
            for parameter in local[0].parameters():
                parameter -= 0.1 * (parameter.grad + 0.5 * parameter)
        for mine, other in zip(net[0].parameters(), local[0].parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)
        net[4].zero_grad()
    assert torch.equal(net.unused, torch.ones(3, 3).double())


@ranks.on(2)
def test_what_no_rank_used_is_stepped_by_torch_alone(rank: int) -> None:
    """torch's steps with a gradient of zero what no rank used, here one of weight decay; ours does not."""
    no_streams()
    for kind, stepped in ((DistributedDataParallel, False), (STOCK, True)):
        net = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        net.forward = lambda x, net=net: net[0](x)
        before = net[1].weight.detach().clone()
        _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1, "weight_decay": 0.5})
        ddp = kind(net, find_unused_parameters=True)
        ddp(torch.ones(1, 2)).sum().backward()
        assert torch.equal(net[1].weight, before) is not stepped


@ranks.on(2)
def test_a_fused_optimizer_does_what_torchs_does(rank: int) -> None:
    for view, subset in itertools.product((False, True), (False, True)):
        results = []
        for kind in (DistributedDataParallel, STOCK):
            ddp = kind(model(), gradient_as_bucket_view=view, bucket_cap_mb=0.001)
            chosen = list(ddp.parameters())[:3] if subset else None
            ddp._register_fused_optim(torch.optim.SGD, 0.05, momentum=0.9, optim_params=chosen)
            for step in range(STEPS):
                ddp(batch(step, rank)).square().mean().backward()
                ddp.zero_grad()
            results.append([parameter.detach() for parameter in ddp.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), (view, subset)
        assert not torch.equal(results[0][0], model()[0].weight)
    with pytest.raises(ValueError, match=r"LBFGS.* does not have a functional counterpart"):
        DistributedDataParallel(model())._register_fused_optim(torch.optim.LBFGS)


@ranks.on(1)
def test_what_does_not_go_together_is_refused(rank: int) -> None:
    net = model()
    _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1})
    ddp = DistributedDataParallel(net)
    ddp.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises(OptionError, match=r"_apply_optimizer_in_backward and a communication hook .* do not go"):
        ddp(batch(0, 0))
    net = model()
    _apply_optimizer_in_backward(torch.optim.SGD, net.parameters(), {"lr": 0.1})
    ddp = DistributedDataParallel(net)
    with pytest.raises(OptionError, match=r"_apply_optimizer_in_backward and join\(\) do not go"), ddp.join():
        ddp(batch(0, 0))
