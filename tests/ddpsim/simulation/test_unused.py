"""What a search for unused parameters costs: the host always, the step only what the host cannot hide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import Collectives
from ddpsim.common.errors import InputError
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload import Phase
from ddpsim.workload.iteration_profile import merge_latest, paces
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
    both = merge_latest([one, other], [0.0, 0.0])
    assert set(both.order) == set(range(8))
    assert both.missed == {0, 7}
    assert merge_latest([one, one], [0.0, 0.0]).missed == frozenset()
    assert both.scale(2.0, 1.0).missed == both.missed


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


def by_rank(unused, source=None, **given):
    source = named(workload()) if source is None else source
    options = Options(find_unused_parameters=True, caps=BucketCaps(bucket_cap_mb=1000), unused=unused, **given)
    placement = PLACEMENT if source.device != "cpu" else load_topology("loopback").place(1, 2)
    return simulate(source, placement, options)


def test_a_rank_that_uses_less_waits_for_the_rank_that_uses_all():
    """By hand: 8 gradients each 10 ms; rank 1 lacks three, and its forward shrinks by as much."""
    trace = by_rank({1: ("layer0", "layer1", "layer2")})
    everything = by_rank({})
    assert summarise(trace).iteration_s == pytest.approx(summarise(everything).iteration_s, rel=1e-3)
    one, other = (trace.of_rank(rank)[-1] for rank in (0, 1))
    assert [gradient.parameter for gradient in other.gradients] == [7, 6, 5, 4, 3]
    assert other.backward_compute_s == pytest.approx(0.05)
    assert other.forward_s == pytest.approx(0.03 * 5 / 8, rel=0.01)
    waits_s = other.exposed_comm_s - one.exposed_comm_s
    hooks_s = 3 * Costs.of("gloo", None).hook_s
    assert waits_s == pytest.approx(0.03 + 0.03 * 3 / 8 + hooks_s, rel=0.05)
    # All are reduced, and updated, on both.
    assert {index for bucket in other.buckets for index in bucket.parameters} == set(range(8))
    assert other.optimizer_s == pytest.approx(one.optimizer_s)


def test_what_no_rank_uses_is_not_updated():
    trace = by_rank({0: ("layer0",), 1: ("layer0", "layer1")})
    for rank in (0, 1):
        assert trace.of_rank(rank)[-1].optimizer_s == pytest.approx(0.01 * 7 / 8)
    step_s, whole_s = (summarise(each).iteration_s for each in (trace, by_rank({})))
    # A gradient of ten milliseconds less, its share of forward and of the optimizer.
    assert whole_s - step_s == pytest.approx(0.01 + 0.03 / 8 + 0.01 / 8, rel=0.05)


def test_a_parameter_that_is_not_used_is_ready_when_the_first_gradient_comes():
    """The first bucket has layers 6 and 7: without 6 it is there with 7, after one gradient instead of two."""
    caps, place = BucketCaps(bucket_cap_mb=1), load_topology("loopback").place(1, 2)
    found = []
    for unused in ({}, {0: ("layer6",), 1: ("layer6",)}):
        options = Options(unused=unused, find_unused_parameters=True, caps=caps)
        iteration = simulate(named(workload()), place, options).of_rank(0)[-1]
        first = iteration.buckets[0]
        assert set(first.parameters) == {6, 7}
        found.append(first.ready_s - iteration.gradients[0].ready_s)
    both_s, one_s = found
    assert both_s == pytest.approx(0.01, rel=0.05)
    assert one_s < 0.001


def test_only_a_rank_that_lacks_a_gradient_reads_the_bitmap_on_its_host():
    source = named(workload(device="V100", host_share=0.1))
    source = replace(source, optimizer=Phase(np.array([0.01]), np.array([0.001])))
    lead = {rank: by_rank({3: ("layer3",)}, source).of_rank(rank)[-1] for rank in (0, 3)}
    # The host of rank 3 launches its optimizer after the bitmap is there, that of rank 0 before.
    assert lead[3].optimizer_s > lead[0].optimizer_s + 0.005


@pytest.mark.parametrize(
    ("unused", "searches", "says"),
    [
        ({1: ("layer3",)}, False, "unused: is given without `find_unused_parameters`"),
        ({9: ("layer3",)}, True, r"unused\[9\]: rank 9 is not in a world of 2"),
        ({1: ("layer9",)}, True, r"unused\[1\]: no parameter is below 'layer9'"),
        ({1: tuple(f"layer{i}" for i in range(8))}, True, r"unused\[1\]: rank 1 uses no parameter"),
    ],
)
def test_ranks_and_layers_that_are_not_are_refused(unused, searches, says):
    with pytest.raises(InputError, match=says):
        simulate(
            named(workload()),
            load_topology("loopback").place(1, 2),
            Options(unused=unused, find_unused_parameters=searches),
        )
