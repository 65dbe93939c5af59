"""A point is known in a journal by all that its answer rests on."""

from __future__ import annotations

import pickle
from dataclasses import replace

from ddpsim import BucketCaps, Calibration, Options, load_topology, load_workload
from ddpsim.planning.sweep import SweepRequest, points_of


def test_keys_tell_points_and_questions_apart_and_are_the_same_elsewhere() -> None:
    question = SweepRequest(load_workload("mlp"), load_topology("dgx-1v"))
    caps = [BucketCaps(), BucketCaps(bucket_cap_mb=5), BucketCaps(bucket_cap_mb=5.0000001)]
    points = points_of([None, 1, 2], caps)
    keys = question.task(points).keys
    assert len(set(keys)) == len(points) == 9
    assert pickle.loads(pickle.dumps(question)).task(pickle.loads(pickle.dumps(points))).keys == keys
    calibration = Calibration.priors("nccl")
    others = [
        replace(question, workload=replace(question.workload, batch_size=1)),
        replace(question, topology=load_topology("p3.16xlarge")),
        replace(question, gpus_per_node=4),
        replace(question, calibration=calibration),
        replace(question, calibration=calibration.with_values({"nccl.ddp.hook_s": 1e-3}, source="given")),
    ]
    asked = [points_of([None, 1, 2], caps, Options(seed=1)), points_of([None, 1, 2], caps, Options(fidelity="closed"))]
    every = [keys, *(other.task(points).keys for other in others), *(question.task(each).keys for each in asked)]
    assert len({key for each in every for key in each}) == 9 * len(every)
