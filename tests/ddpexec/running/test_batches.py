"""The input stage of a run: what loads batches, what is seen of it, and what is refused."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from ddpexec.running.batches import Batches
from ddpexec.running.run import Run
from ddpexec.running.settings import RunSettings
from ddpsim.errors import InputError
from ddpsim.options.input_stage import InputStage, input_stage
from ddpsim.simulation import Options, simulate_local
from ddpsim.trace.metrics import summarise
from tests.ddpexec.running.runs import CPU, trained_run
from tests.ddpexec.small import small_workload

STEPS = "tests.ddpexec.capturing.own_steps"


def period(text: str, step_s: float, count: int = 14) -> float:
    """Return the mean time between the last nine batches of a loop that does nothing else for `step_s`."""
    batches, ends = Batches(input_stage(text), CPU), []
    for _ in range(count):
        batches.take()
        time.sleep(step_s)
        ends.append(time.perf_counter())
    batches.close()
    return (ends[-1] - ends[-9]) / 8


@pytest.mark.shares_clock
@pytest.mark.parametrize(
    ("text", "step_s", "expected_s"),
    [
        ("load=90ms", 0.06, 0.15),
        ("load=100ms,workers=1", 0.2, 0.2),
        ("load=300ms,workers=2", 0.03, 0.15),
        ("load=150ms,copy=1MB,pipelined", 0.03, 0.15),
    ],
)
def test_loading_processes_give_the_period_that_the_simulators_rule_says(
    text: str, step_s: float, expected_s: float
) -> None:
    assert period(text, step_s) == pytest.approx(expected_s, rel=0.15)


@pytest.mark.usefixtures("one_rank")
@pytest.mark.shares_clock
def test_a_run_waits_for_its_batches_as_simulated() -> None:
    recorded = replace(small_workload(), input_stage=InputStage(load_s=0.1))
    found = {}
    for name in ("none", "recorded", "load=100ms"):
        run = trained_run(RunSettings(iterations=5, local_iterations=3, input_stage=name), workload=recorded)
        found[name] = summarise(run.trace()), run.local_s()
    (plain, alone_s), (loaded, loaded_alone_s), (asked, _) = found.values()
    assert plain.parts.get("input_s") is None
    [*_, simulated] = simulate_local(recorded, Options(input_stage="recorded"))
    for summary in (loaded, asked):
        assert summary.parts["input_s"] == pytest.approx(simulated.input_s, rel=0.1)
        assert summary.iteration_s > plain.iteration_s + 0.08
    assert loaded_alone_s > alone_s + 0.08


@pytest.mark.usefixtures("one_rank")
def test_what_a_step_of_ones_own_does_before_forward_counts_where_asked_for() -> None:
    for stage, seen in (("none", False), ("recorded", True)):
        run = trained_run(RunSettings(iterations=2, input_stage=stage), step=f"{STEPS}:looping")
        for iteration in run.trace().iterations:
            assert (iteration.input_s is not None) == seen
            assert not seen or 0 < iteration.input_s < iteration.iteration_s


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("what", "stage", "message"),
    [
        ({"step": f"{STEPS}:loaded"}, "load=3ms", "input_stage: a step of one's own loads its batches itself"),
        ({"model": "mlp"}, "recorded", "input_stage: mlp has none recorded"),
        ({"workload": small_workload()}, "recorded", "small has no input stage recorded"),
    ],
)
def test_stages_that_nothing_carries_out_are_refused(what: dict, stage: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Run(RunSettings(input_stage=stage), CPU, **what)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="copies need a GPU")
@pytest.mark.parametrize("how", ["", ",pinned", ",queued", ",pipelined"])
def test_batches_are_copied_to_the_gpu(how: str) -> None:
    batches = Batches(input_stage(f"copy=1MB{how}"), torch.device("cuda", 0))
    for _ in range(4):
        batches.take()
    torch.cuda.synchronize()
    assert batches.here is not None
    assert batches.here.device.type == "cuda"
    assert batches.here.numel() == 1_000_000
    batches.close()
