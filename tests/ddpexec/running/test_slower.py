"""A rank that is made slower takes so many times as long to compute, and no longer for anything else."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from ddpexec.capturing.models.training import TrainingModel, classifier
from ddpexec.running import slower
from ddpexec.running.run import Run
from ddpexec.running.settings import RunSettings
from ddpsim.common.errors import InputError
from tests.ddpexec.groups import ranks
from tests.ddpexec.running.runs import CPU, trained_run
from tests.ddpexec.small import small_workload

MS = 1e-3
LAYERS = 3
FORWARD_S, BACKWARD_S, REDUCER_S, OPTIMIZER_S = 4 * MS, 6 * MS, 5 * MS, 2 * MS


class Takes(torch.autograd.Function):
    """Hands on what it gets, and a gradient to `weight`, when `work` has been done."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, weight: torch.Tensor, work: Callable[[float], None]) -> torch.Tensor:
        ctx.work = work
        work(FORWARD_S)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        ctx.work(BACKWARD_S)
        return gradient, torch.ones(4), None


class Layers(nn.Module):
    def __init__(self, work: Callable[[float], None]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(4)) for _ in range(LAYERS))
        self.work = work

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        value = value.clone().requires_grad_()
        for weight in self.weights:
            value = Takes.apply(value, weight, self.work)
        return value


class Clock:
    """Seconds that pass where work is done; each look takes a microsecond, so that a wait comes to its end."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1e-6
        return self.now_s

    def work(self, seconds: float) -> None:
        self.now_s += seconds

    def taken_by(self, what: Callable[[], object]) -> float:
        begin_s = self.now_s
        what()
        return self.now_s - begin_s


@pytest.mark.parametrize("factor", [1.25, 3.0])
def test_forward_backward_and_optimizer_take_the_factor_and_the_reducer_does_not(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    clock = Clock()
    monkeypatch.setattr(slower, "time", SimpleNamespace(perf_counter=clock))
    module, hooks = Layers(clock.work), dict[int, tuple[float, float]]()
    made = slower.SlowedModule(module, list(module.weights), SimpleNamespace(hooks=hooks), factor)

    def reduce(index: int, _: torch.Tensor) -> None:
        begin_s = clock()
        clock.work(REDUCER_S)
        hooks[index] = begin_s, clock()

    for index, weight in enumerate(module.weights):
        weight.register_post_accumulate_grad_hook(partial(reduce, index))
    outputs: list[torch.Tensor] = []
    assert clock.taken_by(lambda: outputs.append(module(torch.ones(4)))) == pytest.approx(
        factor * LAYERS * FORWARD_S, abs=0.1 * MS
    )
    made.begin()
    assert clock.taken_by(outputs[0].sum().backward) == pytest.approx(
        LAYERS * (factor * BACKWARD_S + REDUCER_S), abs=0.1 * MS
    )
    made.begin()
    clock.work(OPTIMIZER_S)
    assert OPTIMIZER_S + clock.taken_by(made.end) == pytest.approx(factor * OPTIMIZER_S, abs=0.1 * MS)


def sleeping(name: str, device: torch.device) -> TrainingModel:
    return classifier(name, Layers(time.sleep), 1, (4,), 4)


@ranks.on(2)
def test_a_straggler_of_a_run_computes_so_many_times_as_long_and_no_other_rank_does(rank: int) -> None:
    with mock.patch("ddpexec.running.subject.build", sleeping):
        run = trained_run(RunSettings(iterations=8, stragglers={1: 3.0}), model="sleeping")
    for iteration in run.trace().iterations:
        assert iteration.forward_s >= (1, 3)[rank] * LAYERS * FORWARD_S
        assert iteration.backward_compute_s >= (1, 3)[rank] * LAYERS * BACKWARD_S


@pytest.mark.parametrize("subject", [{"model": "mlp"}, {"workload": small_workload()}])
def test_a_straggler_that_is_no_rank_is_refused(one_rank: None, subject: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"stragglers: rank 7 is not in a world of 1; give a rank from 0 to 0"):
        Run(RunSettings(stragglers={7: 2.0}), CPU, **subject)
