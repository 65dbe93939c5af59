"""A job is all that a prediction rests on: equal ones have equal keys, and a changed one has another."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddpsim import BucketCaps, Calibration, InputError, Job, Options, load_topology, load_workload, predict

WORKLOAD, MACHINE = load_workload("resnet50"), load_topology("dgx-1v")
CHANGES: list[dict[str, Any]] = [
    {"workload": load_workload("mlp")},
    {"topology": load_topology("dgx-2")},
    {"nodes": 2},
    {"gpus_per_node": 4},
    {"options": Options(caps=BucketCaps(bucket_cap_mb=5))},
    {"options": Options(jitter=0.1)},
    {"calibration": Calibration.priors("nccl").with_values({"nccl.ddp.hook_s": 1e-4}, source="given")},
]


def test_equal_jobs_have_equal_keys_wherever_they_are_made() -> None:
    assert Job(load_workload("resnet50"), load_topology("dgx-1v")).key() == Job(WORKLOAD, MACHINE).key()


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"options": Options(caps=BucketCaps(5))}, {"options": Options(caps=BucketCaps(np.float64(5.0)))}),
        ({"options": Options(stragglers={0: 2})}, {"options": Options(stragglers={0: 2.0})}),
        ({}, {"nodes": MACHINE.nodes}),
        ({"nodes": 2}, {"nodes": 2, "gpus_per_node": MACHINE.gpus_per_node}),
    ],
)
def test_one_job_said_in_two_ways_has_one_key(given: dict[str, Any], same: dict[str, Any]) -> None:
    job = Job(WORKLOAD, MACHINE)
    assert replace(job, **given).key() == replace(job, **same).key()


def test_a_changed_job_has_another_key() -> None:
    jobs = [Job(WORKLOAD, MACHINE), *(replace(Job(WORKLOAD, MACHINE), **change) for change in CHANGES)]
    assert len({job.key() for job in jobs}) == len(jobs)


@pytest.mark.parametrize("given", [{"nodes": 2}, {"options": Options()}, {"topology": MACHINE}])
def test_more_of_a_job_beside_it_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a `Job` is given, and more of a job beside it"):
        predict(Job(WORKLOAD, MACHINE), **given)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"workload": 5}, "workload: 5 is no workload"),
        ({"topology": None}, "topology: None is no machine"),
        ({"nodes": "2"}, "nodes: '2' is not a count"),
        ({"nodes": True}, "nodes: True is not a count"),
        ({"options": {}}, "options: a `dict` is no `Options`"),
        ({"calibration": "nowhere.json"}, "nowhere.json: cannot be read"),
    ],
)
def test_what_can_be_no_part_of_a_job_is_refused_in_one_too(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        predict(replace(Job(WORKLOAD, MACHINE), **changed))
    with pytest.raises(InputError, match=re.escape(said)):
        predict(**{"workload": WORKLOAD, "topology": MACHINE} | changed)


def test_what_a_job_has_is_taken_as_it_is_beside_one() -> None:
    given: dict[str, Any] = {"workload": "resnet50", "topology": "dgx-1v", "nodes": np.int64(2), "options": None}
    assert predict(Job(**given), band=False) == predict(Job(WORKLOAD, MACHINE, 2), band=False)


def test_one_prediction_has_a_machine() -> None:
    with pytest.raises(InputError, match="topology: no machine is given"):
        predict("resnet50")
