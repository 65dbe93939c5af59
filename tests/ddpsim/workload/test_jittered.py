"""Estimates with jitter: the spread that was asked for, on the device alone, and what a prediction makes of it."""

from __future__ import annotations

import numpy as np
import pytest

from ddpsim import load_topology, load_workload
from ddpsim.common.errors import WorkloadError
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.workload.replayed import ITERATIONS, add_jitter

ESTIMATE = load_workload("resnet50@v100-fp32-b32")


def test_device_times_scatter_as_asked_and_the_host_keeps_its_pace():
    made = add_jitter(ESTIMATE, 0.05)
    factors = made.backward.device_s / ESTIMATE.backward.device_s[0]
    assert made.iterations == ITERATIONS
    assert np.log(factors).std() == pytest.approx(0.05, rel=0.03)
    assert set(made.backward.host_s) == set(ESTIMATE.backward.host_s)
    assert (made.gradient_ready_s >= made.gradient_hook_s).all()
    assert "Sinha" in made.provenance["jitter"]["source"]


def test_ranks_wait_for_the_slowest_so_that_a_step_is_longer():
    machine = load_topology("p3dn.24xlarge")
    even, uneven = (predict(Job(each, machine, nodes=2), band=False) for each in (ESTIMATE, add_jitter(ESTIMATE, 0.05)))
    assert 1.02 < uneven.iteration_s / even.iteration_s < 1.2


def test_recorded_iterations_are_not_varied_again():
    assert add_jitter(ESTIMATE, 0) is ESTIMATE
    with pytest.raises(WorkloadError, match="64 iterations of its own"):
        add_jitter(add_jitter(ESTIMATE, 0.02), 0.02)
