"""What a search for unused parameters costs: the host always, the step only what the host cannot hide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import Collectives
from ddpsim.simulation import Options, simulate
from ddpsim.simulation.pace import latest, paces
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload import Phase
from tests.ddpsim.simulation.builders import named, workload

PLACEMENT = load_topology("dgx-1v").place()
SEARCHED_S = 1e-4
"""Of the host, a parameter: far more than it is, to be seen."""


def cost_s(source, search_s=SEARCHED_S):
    """Return what the option adds to a step whose buckets are those of the option already."""
    priors = Calibration.priors("nccl").with_values({"nccl.ddp.search_s": search_s}, source="test")
    options = Options(assignment="unused", caps=BucketCaps(bucket_cap_mb=1000), gradient_as_bucket_view=True)
    without, with_ = (
        summarise(simulate(source, PLACEMENT, replace(options, find_unused_parameters=each), priors)).iteration_s
        for each in (False, True)
    )
    return with_ - without


def bitmap_s(source):
    collectives = Collectives(simpy.Environment(), PLACEMENT, backend="nccl", calibration=None)
    return collectives.estimate_s(4 * len(source.parameters))


def test_a_job_whose_device_is_the_bound_pays_for_the_bitmap_alone():
    source = workload(device="V100", host_share=0.1)
    assert cost_s(source) == pytest.approx(bitmap_s(source), rel=0.02)
    assert cost_s(source, search_s=1e-9) == pytest.approx(cost_s(source), rel=1e-6)


def test_a_job_whose_host_is_the_bound_pays_for_the_search_too():
    source = workload(device="V100", host_share=2.0)
    dear, cheap = cost_s(source), cost_s(source, search_s=1e-9)
    assert dear - cheap == pytest.approx(8 * SEARCHED_S, rel=0.01)


def test_a_parameter_that_is_unused_takes_the_host_its_lead():
    used = workload(device="V100", host_share=0.1)
    # The host launches the optimizer in ten times its time: hidden by the lead it has, and only by that.
    used = replace(used, optimizer=Phase(np.array([0.01]), np.array([0.001])))
    hooks, ready = used.gradient_hook_s.copy(), used.gradient_ready_s.copy()
    hooks[0, 3] = ready[0, 3] = np.nan
    unused = replace(used, gradient_hook_s=hooks, gradient_ready_s=ready)
    assert cost_s(used) == pytest.approx(bitmap_s(used), rel=0.02)
    assert cost_s(unused) == pytest.approx(bitmap_s(used) + 0.01 - 0.001, rel=0.02)


def used_in(*rows):
    """Return a workload of iterations that use these parameters each."""
    source = workload(device="V100", host_share=0.1, iterations=len(rows))
    source = replace(source, optimizer=Phase(np.full(len(rows), 0.01), np.full(len(rows), 0.001)))
    for times in (source.gradient_hook_s, source.gradient_ready_s):
        for row, used in zip(times, rows, strict=True):
            row[[index for index in range(8) if index not in used]] = np.nan
    return source


def test_a_rank_that_stands_for_several_waits_for_the_bitmap_where_one_of_them_does():
    """Two ranks use all but one parameter each, another one: together they use all, and both read the bitmap."""
    one, other = paces(used_in(range(7), range(1, 8)))
    both = latest([one, other], [0.0, 0.0])
    assert set(both.order) == set(range(8))
    assert both.missed == {0, 7}
    assert latest([one, one], [0.0, 0.0]).missed == frozenset()
    assert both.scaled(2.0, 1.0).missed == both.missed


def test_left_out_layers_and_unused_parameters_share_the_search_and_its_bitmap():
    """What is dropped is not sent and what is unused is; the bitmap is sent all the same."""
    source = named(used_in(range(7)))
    options = Options(drop={"layer3": 1.0}, caps=BucketCaps(bucket_cap_mb=0), find_unused_parameters=True)
    trace = simulate(source, PLACEMENT, options)
    for iteration in trace.iterations:
        assert {index for bucket in iteration.buckets for index in bucket.parameters} == set(range(8)) - {3}
        assert {gradient.parameter for gradient in iteration.gradients} == set(range(7)) - {3}
    steps = [
        summarise(simulate(source, PLACEMENT, replace(options, find_unused_parameters=each))).iteration_s
        for each in (False, True)
    ]
    assert steps[1] - steps[0] > bitmap_s(source)
