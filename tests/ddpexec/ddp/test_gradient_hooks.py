"""Hooks on gradients: a user's own and what becomes of the reducer's, beside torch's DDP; ours in several threads."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddpexec.ddp.hooks import hook_gradients, serial
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.wrapper import DistributedDataParallel
from tests.ddpexec.groups import ranks

BOTH = (DistributedDataParallel, nn.parallel.DistributedDataParallel)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"bucket_cap_mb": 0},
    {"gradient_as_bucket_view": True},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"batched_grad_copy": True},
)


def model() -> nn.Module:
    """Return a model with gradients that are copied as they come, and others that are copied together."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 20), nn.Tanh(), nn.Linear(20, 2000), nn.Tanh(), nn.Linear(2000, 3))


def clip(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.01, 0.01)


def double(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


def gradients(kind: Any, rank: int, options: dict[str, Any], when: str, set_to_none: bool) -> list[Tensor]:
    """Return the gradients of each step; of the hooks before wrapping one is taken away after two steps."""
    net = model()
    taken, handles = [], []
    if when != "after":
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(clip)
            handles.append(parameter.register_post_accumulate_grad_hook(double))
    ddp = kind(net, **options)
    if when != "before":
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(clip)
    for step in range(4):
        if step == 2:
            for handle in handles:
                handle.remove()
        ddp.zero_grad(set_to_none=set_to_none)
        x = torch.randn(3, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        ddp(x).square().sum().backward()
        taken += [parameter.grad.clone() for parameter in net.parameters()]
    return taken


@ranks.on(2)
def test_what_is_reduced_is_what_other_hooks_leave(rank: int) -> None:
    for options in OPTIONS:
        for when in ("before", "after", "both"):
            for set_to_none in (True, False):
                ours, theirs = (gradients(kind, rank, options, when, set_to_none) for kind in BOTH)
                for mine, other in zip(ours, theirs, strict=True):
                    assert torch.equal(mine, other), (options, when, set_to_none)


def again(kind: Any, rank: int, options: dict[str, Any]) -> list[Tensor]:
    """Wrap a model again after a wrapper that trained it, and then saw a forward without a backward."""
    net = model()
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(rank))
    ddp = kind(net, **options)
    ddp(x).square().sum().backward()
    ddp(x)
    former = weakref.ref(ddp.reducer) if kind is DistributedDataParallel else None
    del ddp
    gc.collect()
    assert former is None or former() is None
    net.zero_grad()
    net(x).sum().backward()
    taken = [parameter.grad.clone() for parameter in net.parameters()]
    ddp = kind(net, **options)
    for _ in range(2):
        ddp.zero_grad()
        ddp(x).square().sum().backward()
        taken += [parameter.grad.clone() for parameter in net.parameters()]
    return taken


@ranks.on(2)
def test_hooks_and_buckets_go_with_the_wrapper(rank: int) -> None:
    for options in OPTIONS:
        ours, theirs = (again(kind, rank, options) for kind in BOTH)
        for mine, other in zip(ours, theirs, strict=True):
            assert torch.equal(mine, other), options


@pytest.mark.parametrize(("devices", "most"), [(("cpu", "meta"), 1), (("cpu", "cpu"), 2)])
def test_gradients_of_several_devices_are_taken_one_at_a_time(devices: tuple[str, str], most: int) -> None:
    parameters = tuple(nn.Parameter(torch.ones(4, device=device)) for device in devices)
    inside: set[int] = set()
    together: list[int] = []
    both = threading.Barrier(2)

    def hook(index: int, parameter: nn.Parameter) -> None:
        assert parameter is parameters[index]
        inside.add(index)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.2 if most == 1 else 60)
        together.append(len(inside))
        time.sleep(0.01)  # the other may see this one here
        inside.remove(index)

    hook_gradients(ModelParameters(parameters, ()), hook)
    calls = [(each, parameter) for parameter in parameters for each in parameter._post_accumulate_grad_hooks.values()]
    threads = [threading.Thread(target=each, args=(parameter,)) for each, parameter in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(together) == most


def test_a_thread_may_come_back_in() -> None:
    depths: list[int] = []

    def again(depth: int) -> None:
        depths.append(depth)
        if depth:
            into(depth - 1)

    into = serial(again)
    into(2)
    assert depths == [2, 1, 0]
