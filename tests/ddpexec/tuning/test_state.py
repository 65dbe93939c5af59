"""What a tuned model keeps: its state's keys and values, hooks, `no_sync`, a static graph, the order of gradients."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import ddpexec
from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.tuning.tuner import LEAST_STEPS, OBSERVED, WARM_UP
from ddpsim.bucketing import BucketCaps
from tests.ddpexec.groups import ranks
from tests.ddpexec.tuning.test_tuner import BATCH, CAP, OURS, STOCK, WIDTH, predict_at_once

KINDS = ("torch", "ddpexec", "scheme")
STEPS = LEAST_STEPS + 6
WATCHED, TRIED = WARM_UP + 2, WARM_UP + OBSERVED + 8
"""Steps at which a tuner stamps, and at which it tries plans."""
POINTS = {"before": 0, "watched": WATCHED, "tried": TRIED, "after": LEAST_STEPS + 2}
USED = (2, 0, 3, 1)


class Shuffled(torch.nn.Module):
    """Layers used in another order than they are registered in, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in USED)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Any) -> Any:
        self.seen += 1
        for number in USED:
            inputs = torch.relu(self.layers[number](inputs))
        return inputs


def adam(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, lr=0.01)


def made(kind: str, **options: Any) -> tuple[Any, Any]:
    """Return a wrapped model and its optimizer, the same each time."""
    torch.manual_seed(0)
    if kind == "scheme":
        model: Any = ScheduledDataParallel(Shuffled(), "ddp", adam, caps=BucketCaps(bucket_cap_mb=CAP), **options)
        return model, model.optimizer
    model = {"torch": STOCK, "ddpexec": OURS}[kind](Shuffled(), bucket_cap_mb=CAP, **options)
    return model, adam(model.parameters())


def step(model: Any, optimizer: Any, number: int, rank: int, accumulate: int = 1) -> None:
    generator = torch.Generator().manual_seed(1000 * number + rank)
    for micro in range(accumulate):
        with nullcontext() if micro + 1 == accumulate else model.no_sync():
            model(torch.randn(BATCH, WIDTH, generator=generator)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.detach().clone() for name, value in state.items()}


@pytest.mark.parametrize("kind", KINDS)
@ranks.on(2)
def test_a_state_of_any_moment_is_an_untuned_model_s_and_goes_on_in_one(rank: int, kind: str) -> None:
    predict_at_once()
    plain, updating = made(kind)
    known = {}
    for number in range(STEPS):
        known[number] = copied(plain.state_dict())
        step(plain, updating, number, rank)
    end = copied(plain.state_dict())
    model, optimizer = made(kind)
    kept = {}
    tuner = ddpexec.Tuner(model, steps=LEAST_STEPS)
    for number in range(STEPS):
        for name, point in POINTS.items():
            if number == point:
                state = copied(model.state_dict())
                kept[name] = number, state, copy.deepcopy(optimizer.state_dict())
                assert list(state) == list(known[number]), name
                assert all(map(torch.equal, state.values(), known[number].values())), name
        step(model, optimizer, number, rank)
        tuner.step()
    (decision,) = tuner.decisions
    tuner.close()
    assert decision.tried
    assert TRIED < decision.steps <= POINTS["after"]
    assert all(map(torch.equal, model.state_dict().values(), end.values()))
    assert kept.keys() == POINTS.keys()
    for name, (number, state, of_optimizer) in kept.items():
        other, others = made(kind)
        other.load_state_dict(state)
        others.load_state_dict(of_optimizer)
        for further in range(number, STEPS):
            step(other, others, further, rank)
        assert all(map(torch.equal, other.state_dict().values(), end.values())), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [WATCHED, TRIED])
@ranks.on(2)
def test_an_untuned_state_is_taken_in_the_midst_of_tuning(rank: int, kind: str, at: int) -> None:
    predict_at_once()
    plain, updating = made(kind)
    for number in range(7):
        step(plain, updating, number, rank)
    state, of_optimizer = copied(plain.state_dict()), copy.deepcopy(updating.state_dict())
    model, optimizer = made(kind)
    tuner = ddpexec.Tuner(model, steps=LEAST_STEPS)
    for number in range(STEPS):
        if number == at:
            model.load_state_dict(state)
            optimizer.load_state_dict(copy.deepcopy(of_optimizer))
        step(model, optimizer, number, rank)
        tuner.step()
    (decision,) = tuner.decisions
    tuner.close()
    for number in range(at, STEPS):
        step(plain, updating, number, rank)
    assert len(decision.tried) >= 1
    assert all(map(torch.equal, model.state_dict().values(), plain.state_dict().values()))


@pytest.mark.parametrize("kind", KINDS)
@ranks.on(2)
def test_a_user_s_hooks_are_called_as_often_and_act_as_before(rank: int, kind: str) -> None:
    predict_at_once()
    counts, ends, tried = [], [], 0
    for tuned in (False, True):
        model, optimizer = made(kind)
        calls = dict.fromkeys(("before", "after", "backward", "gradient", "accumulated"), 0)
        counts.append(calls)
        layer = model.module.layers[1]

        def count(name: str, calls: dict[str, int] = calls) -> None:
            calls[name] += 1

        model.register_forward_pre_hook(lambda *_, count=count: count("before"))
        layer.register_forward_hook(lambda *_, count=count: count("after"))
        layer.register_full_backward_hook(lambda *_, count=count: count("backward"))
        layer.weight.register_hook(lambda gradient, count=count: [count("gradient"), gradient * 0.5][1])
        layer.bias.register_post_accumulate_grad_hook(lambda _, count=count: count("accumulated"))
        tuner = ddpexec.Tuner(model, steps=LEAST_STEPS) if tuned else None
        for number in range(STEPS):
            step(model, optimizer, number, rank)
            if tuner is not None:
                tuner.step()
        if tuner is not None:
            tried = len(tuner.decisions[0].tried)
            tuner.close()
        ends.append(copied(model.state_dict()))
    assert tried >= 1
    assert counts == [dict.fromkeys(counts[0], STEPS)] * 2
    assert all(map(torch.equal, ends[0].values(), ends[1].values()))


def arrivals() -> list[int]:
    """Return the order in which the gradients come, by registration index."""
    model, order = Shuffled(), list[int]()
    for index, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: order.append(index))
    model(torch.ones(BATCH, WIDTH)).square().mean().backward()
    return order


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "accumulate"), [({}, 1), ({}, 2), ({"static_graph": True}, 1)], ids=["plain", "no_sync", "static"]
)
@ranks.on(2)
def test_weights_are_those_without_tuning_and_plans_have_gradients_as_they_come(
    rank: int, kind: str, options: dict[str, bool], accumulate: int
) -> None:
    predict_at_once()
    ends = []
    for tuned in (False, True):
        model, optimizer = made(kind, **options)
        tuner = ddpexec.Tuner(model, steps=LEAST_STEPS) if tuned else None
        for number in range(STEPS):
            step(model, optimizer, number, rank, accumulate)
            if tuner is not None:
                tuner.step()
        if tuner is not None:
            (decision,) = tuner.decisions
            tuner.close()
        ends.append(copied(model.state_dict()))
    assert all(map(torch.equal, ends[0].values(), ends[1].values()))
    order = arrivals()
    assert order == [index for group in decision.tried[0].groups for index in group] != sorted(order, reverse=True)
