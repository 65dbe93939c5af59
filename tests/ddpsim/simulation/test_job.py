"""A job is all that a prediction rests on: equal ones have equal keys, and a changed one has another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


def test_a_changed_job_has_another_key() -> None:
    jobs = [Job(WORKLOAD, MACHINE), *(replace(Job(WORKLOAD, MACHINE), **change) for change in CHANGES)]
    assert len({job.key() for job in jobs}) == len(jobs)


@pytest.mark.parametrize("given", [{"nodes": 2}, {"options": Options()}, {"topology": MACHINE}])
def test_more_of_a_job_beside_it_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="a `Job` is given, and more of a job beside it"):
        predict(Job(WORKLOAD, MACHINE), **given)


def test_what_is_no_machine_is_refused_in_a_job_too() -> None:
    with pytest.raises(InputError, match="topology: None is no machine"):
        predict(Job("resnet50", None))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="topology: no machine is given"):
        predict("resnet50")
