"""What is kept of a prediction gives it again, to the last bit, and its trace."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from ddpsim import BucketCaps, Calibration, InputError, Options, Prediction, load_topology, load_workload
from ddpsim.planning.best_buckets import pipeline_plan
from ddpsim.planning.efficiency import efficiency_of
from ddpsim.prediction.kept import prediction_line, prediction_of
from ddpsim.prediction.predict import gain_band, predict
from ddpsim.simulation.job import Job

PRIORS = Calibration.priors("nccl")
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "caps": {"options": Options(caps=BucketCaps(bucket_cap_mb=5.1, first_bucket_mb=1))},
    "listed": {"options": Options(caps=BucketCaps(bucket_cap_mb_list=(1, 30.5)), accumulate=2)},
    "one node": {"nodes": 1},
    "one rank": {"nodes": 1, "gpus_per_node": 1},
    "rebuilt orders": {"options": Options(order="once", find_unused_parameters=True, optimizer="adamw")},
    "measured": {"calibration": PRIORS.with_values({"nccl.ddp.hook_s": 1e-4}, source="given")},
    "layers left out": {"options": Options(drop={"layer4": 0.5})},
}


def again(found: Prediction, given: dict[str, Any]) -> Prediction:
    return prediction_of(prediction_line(found), job_of(given))


def job_of(given: dict[str, Any]) -> Job:
    return Job(load_workload("resnet50"), load_topology("dgx-1v"), **{"nodes": 2} | given)


@pytest.mark.parametrize("case", CASES)
def test_a_recalled_prediction_is_the_one_that_was_kept(case: str) -> None:
    given = {"nodes": 2, **CASES[case]}
    found = predict(job_of(given))
    recalled_ = again(found, given)
    assert recalled_ == found
    assert recalled_.document() == found.document()
    assert recalled_.ends == found.ends
    assert efficiency_of(recalled_) == efficiency_of(found)
    assert gain_band(recalled_, found) == gain_band(found, found)
    assert recalled_.trace == found.trace


@pytest.mark.parametrize("case", ["default", "rebuilt orders"])
def test_a_prediction_is_pickled_without_its_runs(case: str) -> None:
    found = predict(job_of(CASES[case]))
    size = len(pickle.dumps(found))
    trace = found.trace
    assert len(pickle.dumps(found)) == size
    again = pickle.loads(pickle.dumps(found))
    assert (again, again.ends, again.document(), again.trace) == (found, found.ends, found.document(), trace)


def test_a_plan_that_was_asked_for_is_kept() -> None:
    source, machine = load_workload("resnet50"), load_topology("dgx-1v")
    default = predict(Job(source, machine, nodes=2), band=False)
    given = {"options": replace(default.options, plan=pipeline_plan(default))}
    found = predict(job_of(given), band=False)
    assert again(found, given) == found
    assert again(found, given).plan != default.plan


@pytest.mark.parametrize("changed", ["5", "[]", '{"iteration_s": 1}', "nothing"])
def test_what_is_no_prediction_of_the_job_is_refused(changed: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        prediction_of(changed, job_of({}))
    found = prediction_line(predict(job_of({}), band=False))
    with pytest.raises((InputError, IndexError)):
        prediction_of(found, Job(load_workload("mlp"), load_topology("loopback")))
