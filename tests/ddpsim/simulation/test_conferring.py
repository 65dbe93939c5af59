"""Order policies in predictions: predictors of one's own, what conferring costs, and one that fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.bucketing.order.predictors import MeanReady
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import InputError
from ddpsim.prediction.predict import predict
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from tests.ddpsim.simulation.builders import workload

CAPS = BucketCaps(bucket_cap_mb=1.0)
NAMES = ("expect_s", "agree_s", "rebuild_s")


class Backwards(MeanReady):
    def predict(self):
        return [-time for time in super().predict()]


class Failing(MeanReady):
    def predict(self):
        raise LookupError("nothing learnt")


def groups(predictor, order="drift:1:4"):
    options = Options(caps=CAPS, order=order, predictor=predictor, backend="gloo", iterations=6)
    return simulate(workload(), load_topology("loopback").place(1, 2), options).plan.groups()


def test_a_class_an_object_and_a_path_are_one_predictor():
    assert (
        groups("mean")
        == groups(MeanReady)
        == groups(MeanReady())
        == groups("ddpsim.bucketing.order.predictors:MeanReady")
    )
    assert groups(Backwards) != groups("mean")
    assert [index for group in groups(Backwards) for index in group] == list(range(8))


def test_one_that_fails_says_so():
    with pytest.raises(InputError, match=r"predictor: Failing.predict\(\) raised LookupError: nothing learnt"):
        groups(Failing)
    with pytest.raises(InputError, match="predictor: unknown predictor 'nearest'"):
        Options(order="once", predictor="nearest")


def test_an_option_that_is_an_object_may_be_told_and_predicted_with():
    options = Options(order="drift:1:4", predictor=MeanReady, caps=CAPS)
    found = predict(Job(workload(), load_topology("loopback"), gpus_per_node=2, options=options))
    named = predict(
        Job(workload(), load_topology("loopback"), gpus_per_node=2, options=replace(options, predictor="mean"))
    )
    assert found.iteration_s == named.iteration_s
    assert found.document().keys() == named.document().keys()


@pytest.mark.parametrize("device", ["cpu", "V100"])
@pytest.mark.parametrize("find_unused", [False, True])
def test_conferring_before_every_iteration_costs_its_message_and_the_hosts_time(device, find_unused):
    """The host is the bound, so that what it spends shows: 8 parameters, 16 ranks, no rebuild after the first."""
    source = workload(device=device, host_share=2.0, size=100)
    machine = load_topology("lab-flat" if device == "cpu" else "dgx-1v")
    placement = machine.place(2)
    backend = "gloo" if device == "cpu" else "nccl"
    steps = {}
    for price in (1e-15, 1e-4):
        values = {f"{backend}.ddp.{name}": price for name in NAMES}
        priced = Calibration.priors(backend).with_values(values, source="test")
        for order in ("once", "drift:-1:1"):
            options = Options(
                order=order, backend=backend, find_unused_parameters=find_unused, iterations=5, consensus="rank0"
            )
            records = simulate(source, placement, options, priced).of_rank(0)
            steps[order, price] = float(np.mean([record.iteration_s for record in records]))
    message = steps["drift:-1:1", 1e-15] - steps["once", 1e-15]
    assert message > 1e-6
    told = 1 + (placement.world_size if find_unused else 1)
    paid = steps["drift:-1:1", 1e-4] - steps["once", 1e-4]
    # On a GPU what the host spends hides a part of the device's work that the message alone did not.
    assert paid - message == pytest.approx(8 * told * 1e-4, rel=0.02 if device == "cpu" else 0.05)
