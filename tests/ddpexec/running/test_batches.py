"""The input stage of a run: what loads batches, what is seen of it, and what is refused."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace

import pytest
import torch

from ddpexec.running.batches import Batches
from ddpexec.running.run import Run
from ddpexec.running.settings import RunSettings
from ddpsim.common.errors import InputError
from ddpsim.common.options.input_stage import InputStage, input_stage
from ddpsim.simulation.engine import simulate_local
from ddpsim.simulation.jobs.simulated import Options
from tests.ddpexec.running.runs import CPU, trained_run
from tests.ddpexec.small import small_workload

STEPS = "tests.ddpexec.capturing.own_steps"


@pytest.mark.parametrize(
    ("text", "step_s", "least_s"),
    [
        ("load=30ms", 0.02, 5 * 0.05),  # one after another, on one thread
        ("load=20ms,workers=1", 0.04, 0.02 + 5 * 0.04),
        ("load=120ms,workers=2", 0.01, 3 * 0.12 + 0.01),
        ("load=60ms,copy=1MB,pipelined", 0.01, 5 * 0.06 + 0.01),
    ],
)
def test_batches_come_no_sooner_than_as_many_processes_load_them(text: str, step_s: float, least_s: float) -> None:
    """How much later they come is of the machine: `studies.benchmarks.loading`."""
    stage = input_stage(text)
    others = set(multiprocessing.active_children())
    batches, begin_s = Batches(stage, CPU), time.perf_counter()
    for _ in range(5):
        batches.take()
        time.sleep(step_s)
    took_s = time.perf_counter() - begin_s
    assert len(set(multiprocessing.active_children()) - others) == stage.loaders
    batches.close()
    assert took_s >= least_s


@pytest.mark.usefixtures("one_rank")
def test_a_run_waits_for_its_batches_as_simulated() -> None:
    recorded = replace(small_workload(), input_stage=InputStage(load_s=0.1))
    found = {}
    for name in ("none", "recorded", "load=100ms"):
        run = trained_run(RunSettings(iterations=5, local_iterations=3, input_stage=name), workload=recorded)
        found[name] = run.trace().iterations, run.local_s()
    (plain, _), (loaded, loaded_alone_s), (asked, _) = found.values()
    assert {each.input_s for each in plain} == {None}
    [*_, simulated] = simulate_local(recorded, Options(input_stage="recorded"))
    least_s = 0.999 * simulated.input_s
    assert all(each.iteration_s > each.input_s >= least_s for each in (*loaded, *asked))
    assert loaded_alone_s > least_s


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
