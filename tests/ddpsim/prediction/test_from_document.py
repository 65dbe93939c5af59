"""A prediction's document, with its job, gives it again, to the last bit, and its trace."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pytest

from ddpsim import BucketCaps, Calibration, InputError, Options, Prediction, load_topology, load_workload, predict
from ddpsim.planning.best_buckets import pipeline_plan
from ddpsim.planning.comparison_row import efficiency_of
from ddpsim.prediction.predict import gain_band
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.pipeline import parse_pipeline

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
    return Prediction.from_document(json.dumps(found.document()), job_of(given))


def job_of(given: dict[str, Any]) -> Job:
    return Job(load_workload("resnet50"), load_topology("dgx-1v"), **{"nodes": 2} | given)


@pytest.mark.parametrize("case", CASES)
def test_a_read_prediction_is_the_one_that_was_written(case: str) -> None:
    given = {"nodes": 2, **CASES[case]}
    found = predict(job_of(given))
    read = again(found, given)
    assert read == found
    assert read.document() == found.document()
    assert read.ends == found.ends
    assert efficiency_of(read) == efficiency_of(found)
    assert gain_band(read, found) == gain_band(found, found)
    assert read.trace == found.trace


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


@pytest.mark.parametrize("changed", ["5", "[]", '{"iteration_s": 1}', "nothing", {"buckets": 3}])
def test_what_is_no_prediction_of_the_job_is_refused(changed: Any) -> None:
    with pytest.raises(InputError, match=r"no prediction|not a prediction|key is missing"):
        Prediction.from_document(changed, job_of({}))


def test_a_document_of_an_earlier_version_is_refused_with_what_it_lacks() -> None:
    found = predict(job_of({}), band=False).document()
    del found["plan"]
    with pytest.raises(InputError, match=r"^document: \n  plan\.buckets: the key is missing"):
        Prediction.from_document(found)


def test_another_jobs_document_is_refused() -> None:
    found = predict(job_of({}), band=False).document()
    with pytest.raises(InputError, match="the document is no prediction"):
        Prediction.from_document(found, Job("mlp", "loopback"))
    others = {
        "`nodes` is 2, the job's 4": {"nodes": 4},
        "`scheme` is 'ddp', the job's 'zero1'": {"options": Options(scheme="zero1")},
        "`accumulate` is 1, the job's 2": {"options": Options(accumulate=2)},
        "`compression` is 'none', the job's 'fp16'": {"options": Options(compression="fp16")},
    }
    for said, other in others.items():
        with pytest.raises(InputError, match=f"the document is another job's: its {said}"):
            Prediction.from_document(found, job_of(other))


@pytest.mark.parametrize(
    ("key", "value"),
    [("memory", {"x": 1}), ("iteration_s", -1.0), ("samples_per_s", float("nan")), ("nodes", "two"), ("notes", 3)],
)
def test_a_figure_that_cannot_be_is_refused(key: str, value: object) -> None:
    found = predict(job_of({}), band=False).document()
    with pytest.raises(InputError, match=key if key != "memory" else "lacks 'parameters_bytes'"):
        Prediction.from_document({**found, key: value})
    with pytest.raises(InputError, match=key):
        Prediction.from_document({name: each for name, each in found.items() if name != key})


def test_texts_that_are_too_deep_or_too_long_are_no_prediction() -> None:
    for text in ("[" * 200_000, "1" * 5_000):
        with pytest.raises(InputError, match="the document is no prediction"):
            Prediction.from_document(text)


ONE_WITH_ALL = {
    "accumulated": {"options": Options(accumulate=2)},
    "asynchronous": {"options": Options(scheme="parameter-server:servers=2,async")},
    "pipeline": {"options": Options(pipeline=parse_pipeline("gpipe:2,boundary=25MiB", "pipeline"))},
}


@pytest.mark.parametrize("case", ONE_WITH_ALL)
def test_without_its_job_it_has_numbers_and_tables_and_says_what_it_lacks(case: str) -> None:
    found = predict(job_of(ONE_WITH_ALL[case]))
    alone = Prediction.from_document(found.document())
    for name in ("step_s", "samples_per_s", "samples_per_s_band", "tokens_per_s", "scaling_efficiency", "memory"):
        assert getattr(alone, name) == getattr(found, name), name
    for name in ("doubts", "summary", "rank_steps_s", "remarks", "clipping_s", "nodes", "notes", "accumulate"):
        assert getattr(alone, name) == getattr(found, name), name
    assert {title: str(table) for title, table in alone.tables().items()} == {
        title: str(table) for title, table in found.tables().items()
    }
    assert (alone.document(), alone.records()) == (found.document(), found.records())
    assert (repr(alone), alone._repr_html_()) == (repr(found), found._repr_html_())
    assert pickle.loads(pickle.dumps(alone)) == alone == Prediction.from_document(found.document())
    kept = Prediction.from_document(found.kept_document())
    assert kept.document() == found.document() | {"transports": None}
    for name, lacks in {"trace": "no run: its `trace`", "workload": "no run"}.items():
        with pytest.raises(InputError, match=f"without its job, and has {lacks}"):
            getattr(alone, name)
    with pytest.raises(InputError, match="has no plan: its `torch` is not known"):
        alone.plan.torch  # noqa: B018
