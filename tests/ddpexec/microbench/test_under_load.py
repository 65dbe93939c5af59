"""Slow-downs of a computation and collectives whose times are known."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from ddpexec.groups.launched import Launched
from ddpexec.groups.process_groups import Communicator
from ddpexec.microbench import under_load
from ddpexec.microbench.ddp_costs import LARGE_BYTES, BesideCopies, Copies
from ddpexec.timing.stopwatch import Span

STEPS, COLLECTIVES = 3, 8


class Pretended:
    """A step of 8 ms, 10 when all ranks compute, 20 beside a collective; a collective of 4 ms, 12 beside a step.

    All take next to no time: `step` returns what it would have taken, in place of what a stopwatch says.
    """

    def __init__(self) -> None:
        self.main, self.steps = threading.current_thread(), 0
        self.beside, self.stepped = threading.Event(), threading.Event()

    def step(self) -> float:
        self.steps += 1
        if self.steps <= STEPS:
            return 0.008
        if self.steps <= 2 * STEPS:
            return 0.010
        assert self.beside.wait(30)
        self.stepped.set()
        time.sleep(0.5e-3)
        return 0.020

    def collective(self) -> Span:
        if threading.current_thread() is self.main:
            return 1.0, 1.004
        self.beside.set()
        assert self.stepped.wait(30)  # on a busy machine all collectives may be over before the first step
        time.sleep(2e-3)
        return 1.0, 1.012


@pytest.mark.usefixtures("one_rank")
def test_a_slowdown_is_what_is_loaded_over_what_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_load, "seconds_of", lambda work, device: work())
    launched = Launched(Communicator([torch.distributed.group.WORLD]), torch.device("cpu"), 1)
    made = Pretended()
    factors = under_load.measure_round(launched, made.step, made.collective, STEPS, COLLECTIVES)
    assert factors == pytest.approx((2.0, 3.0, 1.25))


@pytest.mark.usefixtures("one_rank")
def test_of_several_rounds_the_median_counts_and_nothing_is_faster_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([(2.0, 1.5, 0.9), (9.0, 1.4, 0.8), (1.0, 1.6, 0.7)])
    monkeypatch.setattr(under_load, "measure_round", lambda *_: next(rounds))
    monkeypatch.setattr(under_load, "SIZE_BYTES", 64)
    launched = Launched(Communicator([torch.distributed.group.WORLD]), torch.device("cpu"), 1)
    found = under_load.measure_slowdowns(launched, lambda: None, rounds=3)
    assert found == under_load.Slowdowns(2.0, 1.5, 1.0)


@pytest.mark.usefixtures("one_rank")
def test_copies_and_collectives_slow_each_other_by_what_is_loaded_over_what_is_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def beside(_: Copies, communicator: Communicator, tensor: torch.Tensor) -> BesideCopies:
        large = tensor.nbytes == LARGE_BYTES
        return BesideCopies((5.0, 5.004), (7.0, 7.010 if large else 7.024), 1.5)

    monkeypatch.setattr("ddpexec.microbench.ddp_costs.BUCKET_BYTES", 4800)
    monkeypatch.setattr(Copies, "measure_beside", beside)
    communicator = Communicator([torch.distributed.group.WORLD])
    found = Copies(torch.device("cpu")).slowdowns(communicator)
    assert found == pytest.approx({"copy_slowdown": 1.5, "communication_slowdown": 2.5, "step_slowdown": 6.0})
