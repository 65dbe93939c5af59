"""Averages of parameters carried out: against one process, torch's own PostLocalSGD, and SlowMo's algorithm by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.errors import OptionError
from tests.ddpexec.ddp.schedules.training import (
    OPTIMIZERS,
    STEPS,
    apart,
    loss_of,
    mine,
    model_of,
    take_step,
    train,
    weights_of,
    wrapped,
)
from tests.ddpexec.groups import ranks


def trained(rank: int, scheme: str, optimizer: str = "sgd", **options: Any) -> list[Any]:
    return train(wrapped(rank, scheme, optimizer, **options), rank)


def by_hand(optimizer: str, steps: int, momentum: float | None = None, rate: float = 1.0) -> list[Any]:
    """Return the weights of all ranks, trained one after the other here, by algorithm 1 of SlowMo's paper."""
    world = torch.distributed.get_world_size()
    models = [model_of() for _ in range(world)]
    inner = [OPTIMIZERS[optimizer](model.parameters()) for model in models]
    last = weights_of(models[0])
    slow = [torch.zeros_like(weight) for weight in last]
    for step in range(STEPS):
        for rank, (model, updating) in enumerate(zip(models, inner, strict=True)):
            loss_of(model, *mine(step, rank)).backward()
            updating.step()
            updating.zero_grad()
        if (step + 1) % steps:
            continue
        mean = [torch.stack(each).mean(0) for each in zip(*map(weights_of, models), strict=True)]
        if momentum is not None:
            gamma = inner[0].param_groups[0]["lr"]
            slow = [momentum * u + (x0 - x) / gamma for u, x0, x in zip(slow, last, mean, strict=True)]
            mean = [x0 - rate * gamma * u for x0, u in zip(last, slow, strict=True)]
        last = mean
        for model in models:
            for parameter, value in zip(model.parameters(), mean, strict=True):
                parameter.data.copy_(value)
    return weights_of(models[torch.distributed.get_rank()])


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.needs("minutes"))])
@ranks.on("world", timeout_s=110)
def test_averages_and_slowmo_end_where_hand_computation_does(rank: int) -> None:
    found = {}
    for optimizer in OPTIMIZERS:
        for steps in (1, 4, 7):
            scheme = f"averaging:{steps}"
            found[f"{scheme} {optimizer}"] = apart(trained(rank, scheme, optimizer), by_hand(optimizer, steps))
    for text, momentum, rate in (("", 0.5, 1.0), (",momentum=0.8,rate=0.9", 0.8, 0.9), (",momentum=0", 0.0, 1.0)):
        expected = by_hand("sgd", 4, momentum, rate)
        found[f"slowmo{text}"] = apart(trained(rank, f"slowmo:4{text}"), expected)
    assert {name: far for name, far in found.items() if far > 1e-10} == {}


@ranks.on(4)
def test_local_sgd_ends_where_torch_s_post_local_sgd_does(rank: int) -> None:
    """In pairs, beside torch's DDP with its hook and optimizer of PostLocalSGD."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    pairs = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    model = nn.parallel.DistributedDataParallel(model_of())
    state = PostLocalSGDState(process_group=None, subgroup=pairs[rank // 2], start_localSGD_iter=-1)
    model.register_comm_hook(state, post_localSGD_hook)
    # Torch averages after the steps numbered warmup, warmup + 4, ... from 0: after the fourth, eighth, ... here.
    averager = PeriodicModelAverager(period=4, warmup_steps=3)
    updating = PostLocalSGDOptimizer(optim=OPTIMIZERS["sgd"](model.parameters()), averager=averager)
    for step in range(STEPS):
        loss_of(model, *mine(step, rank)).backward()
        updating.step()
        updating.zero_grad()
    assert apart(trained(rank, "local-sgd:4,ranks=2"), weights_of(model.module)) < 1e-10


@ranks.on(2)
def test_ranks_differ_between_averages_and_agree_after_them(rank: int) -> None:
    made = wrapped(rank, "averaging:2", "sgd")
    found = []
    for step in range(2):
        take_step(made, step, rank)
        with torch.no_grad():
            made(mine(step, rank)[0])
        flat = torch.cat([weight.flatten() for weight in weights_of(made.module)])
        all_ = [torch.zeros_like(flat) for _ in range(2)]
        torch.distributed.all_gather(all_, flat)
        found.append(float((all_[0] - all_[1]).abs().max()))
    before, after = found
    assert before > 1e-6
    assert after == apart(made.state_dict().values(), weights_of(made.module)) == 0


@ranks.on(2)
def test_steps_are_counted_and_not_micro_batches(rank: int) -> None:
    found = {}
    expected = by_hand("sgd", 2)
    for how in ("every", "no_sync", "accumulate"):
        options = {"every": {"every": 2}, "no_sync": {}, "accumulate": {"accumulate": 2}}[how]
        made = wrapped(rank, "averaging:2", **options)
        for step in range(STEPS):
            for half in range(2):
                inputs, targets = (part[2 * half : 2 * half + 2] for part in mine(step, rank))
                if how == "no_sync" and half == 0:
                    with made.no_sync():
                        (loss_of(made, inputs, targets) / 2).backward()
                else:
                    (loss_of(made, inputs, targets) / 2).backward()
            made.optimizer.step()
            made.optimizer.zero_grad()
        made.complete()
        found[how] = apart(weights_of(made.module), expected)
    assert {name: far for name, far in found.items() if far > 1e-10} == {}


class Rateless(torch.optim.SGD):
    """An optimizer that calls its learning rate otherwise."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["pace"] = self.param_groups[0].pop("lr")

    def step(self, closure: Any = None) -> None:
        """Do nothing."""


@ranks.on(2)
def test_slowmo_without_a_learning_rate_is_refused(rank: int) -> None:
    made = ScheduledDataParallel(model_of(), "slowmo:1", Rateless)
    loss_of(made, *mine(0, rank)).backward()
    with pytest.raises(OptionError, match="no learning rate"):
        made.optimizer.step()
