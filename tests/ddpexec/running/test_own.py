"""Runs of a user's own step."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpexec.running.provenance import provenance
from ddpexec.running.settings import IMPLEMENTATIONS, RunSettings
from ddpsim.bucketing import BucketCaps
from ddpsim.common.errors import InputError
from ddpsim.trace.json import read_trace
from tests import forked
from tests.ddpexec.groups import ranks
from tests.ddpexec.running.runs import trained_run

STEPS = "tests.ddpexec.capturing.own_steps"


def trained(rank: int, name: str, implementation: str, **options: Any) -> dict[str, Any]:
    settings = RunSettings(implementation=implementation, iterations=3, caps=BucketCaps(bucket_cap_mb=0.01), **options)
    run = trained_run(settings, step=f"{STEPS}:{name}")
    trace = run.trace()
    return {
        "iterations": trace.iterations,
        "parameters": [p.detach().clone() for p in run.parameters.tensors],
        "plan": [bucket.parameters for bucket in run.plan_in_force().buckets],
        "provenance": provenance(run, []),
        "stamping_s": run.stamping_s(),
    }


@pytest.mark.parametrize("name", ["two_losses", "checkpointed"])
def test_both_implementations_train_ones_own_step_alike(name: str) -> None:
    train = functools.partial(trained, find_unused_parameters=True) if name == "checkpointed" else trained
    both = [ranks.run(2, train, name, implementation, timeout_s=100) for implementation in IMPLEMENTATIONS]
    for first, second in both:
        assert all(map(torch.equal, first["parameters"], second["parameters"]))
        for it in (*first["iterations"], *second["iterations"]):
            assert it.synced
            assert 0 < it.forward_s < it.iteration_s
            assert it.backward_compute_s > 0
            assert it.optimizer_s > 0
            assert all(it.start_s < bucket.launched_s <= bucket.finished_s for bucket in it.buckets)
        assert len(first["iterations"]) == 3
    assert both[0][0]["plan"] == both[1][0]["plan"]
    assert {run[0]["provenance"]["model"] for run in both} == {f"{STEPS}.{name}"}
    assert {run[0]["provenance"]["batch_size"] for run in both} == {5 if name == "two_losses" else 8}


def averaged(rank: int) -> list[Any]:
    """Return the parameters after a run in which each rank draws parameters and a batch of its own."""
    run = trained_run(RunSettings(iterations=1, seed=rank), step=f"{STEPS}:two_losses")
    return [p.detach().clone() for p in run.parameters.tensors]


def test_gradients_are_averaged_over_ranks() -> None:
    """Rank 0's parameters are broadcast, gradients of different batches averaged: all ranks end alike."""
    first, second = ranks.run(2, averaged)
    assert all(map(torch.equal, first, second))


@pytest.mark.usefixtures("one_rank")
def test_a_slower_rank_trains_ones_own_step_too() -> None:
    run = trained_run(RunSettings(iterations=2, scale_compute=2.0), step=f"{STEPS}:weighted_experts")
    assert len(run.trace().iterations) == 2


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raising", r"--step \S+: own_steps.py:\d+: RuntimeError: mat1 and mat2 shapes"),
        ("no_backward", "iteration 0: no backward"),
        ("nothing", "returned NoneType; return"),
        ("frozen", "the step's module is on no device|requires a gradient|needs a gradient"),
    ],
)
def test_bad_steps_are_refused(name: str, message: str) -> None:
    backward = torch.autograd.backward
    with pytest.raises(InputError, match=message):
        trained_run(RunSettings(iterations=1), step=f"{STEPS}:{name}")
    assert torch.autograd.backward is backward


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_command_trains_ones_own_step(implementation: str, tmp_path: Path) -> None:
    command = [*forked.TORCHRUN, "2", "-m", "ddpexec", "run"]
    options = ["--step", f"{STEPS}:two_losses", "--impl", implementation, "--iterations", "2", "--out", str(tmp_path)]
    done = forked.command([*command, *options, "--json"], Path.cwd(), {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["world_size"], document["implementation"]) == (2, implementation)
    parts = ("forward", "backward_compute", "exposed_comm", "buffer_broadcast", "ddp_overhead", "optimizer")
    assert document["iteration_s"] == pytest.approx(sum(document[f"{part}_s"] for part in parts))
    assert read_trace(tmp_path).ranks == [0, 1]
