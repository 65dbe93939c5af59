"""A compiled step under DDP: gradients come a graph at a time, and a further graph costs the host."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.bucketing.compiled import graph_splits
from ddpsim.collectives.calibration import Calibration
from ddpsim.prediction.predict import predict
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.graph_cuts import FORWARD_SHARE, GraphCuts, cuts_s, group_by_graphs
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.iteration_profile import paces
from ddpsim.workload.operators import Operator, StepOperators
from tests.ddpsim.simulation.builders import named, workload

DGX = load_topology("dgx-1v")
CAP = BucketCaps(bucket_cap_mb=8)
"""Of gradients of 4 MB: one in the first graph, then three in each."""


def source(**given):
    return named(workload(**{"device": "V100", "gradients": 10, "size": 1_000_000, "host_share": 0.01, **given}))


def with_edges(edge_bytes):
    """Return the step with its operators, of which each passes so many bytes more than the one before."""
    forward = tuple(Operator("memory", 0.0, 4.0, edge_bytes=edge_bytes * number) for number in range(10))
    return replace(source(), operators=StepOperators(4, "sample", forward, (), tuple(range(10))))


def test_gradients_of_a_graph_come_when_its_last_one_does():
    one = source()
    graphs = graph_splits(one.parameters, CAP, one.arrival_order())
    assert graphs == [(9,), (8, 7, 6), (5, 4, 3), (2, 1, 0)]
    [plain], apart = paces(one), group_by_graphs(paces(one)[0], graphs, 0.0, [0.0] * 4)
    assert apart.order == plain.order
    ready = np.cumsum(plain.work)
    assert np.cumsum(apart.work) == pytest.approx(ready[[0, 3, 3, 3, 6, 6, 6, 9, 9, 9]])
    assert np.cumsum(apart.host) == pytest.approx(np.cumsum(plain.host)[[0, 3, 3, 3, 6, 6, 6, 9, 9, 9]])
    assert (apart.work_s, apart.host_s) == (pytest.approx(plain.work_s), pytest.approx(plain.host_s))
    assert group_by_graphs(plain, [], 1.0, []) is plain


def test_each_further_graph_costs_the_host_forward_and_backward():
    [plain] = paces(source())
    found = group_by_graphs(plain, [(9,), (8, 7, 6), (5, 4, 3), (2, 1, 0)], 1e-3, [0.0] * 4)
    assert found.forward_host - plain.forward_host == pytest.approx(3e-3 * FORWARD_SHARE)
    assert found.host_s - plain.host_s == pytest.approx(3e-3)
    assert found.work_s == pytest.approx(plain.work_s)


def test_a_cut_costs_the_device_the_bytes_that_cross_it():
    """Written and read by forward, and their gradients by backward; before the first graph nothing crosses."""
    one = source()
    counted = with_edges(1e6)
    graphs = [(9,), (8, 7, 6), (5, 4, 3), (2, 1, 0)]
    edges_s = cuts_s(counted, graphs, gpu_named("V100"), 2.0)
    once_s = 1e6 / gpu_named("V100").achieved_Bps
    assert edges_s == pytest.approx([2 * number * once_s for number in (9, 6, 3, 0)])
    [plain] = paces(one)
    found = group_by_graphs(plain, graphs, 0.0, edges_s)
    assert found.forward_work - plain.forward_work == pytest.approx(sum(edges_s))
    assert found.work_s - plain.work_s == pytest.approx(2 * sum(edges_s))
    fewer = cuts_s(counted, [(9,), (8, 7, 6, 5, 4, 3, 2, 1, 0)], gpu_named("V100"), 2.0)
    assert sum(fewer) < sum(edges_s)
    assert cuts_s(one, graphs, gpu_named("V100"), 2.0) is None, "nobody counted its operators"
    none = replace(counted, operators=replace(counted.operators, forward=(Operator("memory", 0.0, 4.0),) * 10))
    assert cuts_s(none, graphs, gpu_named("V100"), 2.0) is None, "it was counted before edges were"


def test_a_prediction_says_what_cuts_cost_and_what_leaves_them_out():
    counted, options = with_edges(1e6), Options(caps=CAP, compiled=True)
    found = predict(Job(counted, DGX, options=options), band=False)
    once_s = 1e6 / gpu_named("V100").achieved_Bps
    assert found.graph_cuts == GraphCuts(4, pytest.approx(3 * 200e-6), pytest.approx(2 * 2 * 18 * once_s))
    assert "4 graphs, which costs 0.103 ms" in found.notes[-1]
    assert "`graph_passes`, 0 leaves" in found.notes[-1]
    left_out = Calibration.priors("nccl").with_values({"nccl.ddp.graph_passes": 0.0}, source="given")
    without = predict(Job(counted, DGX, options=options, calibration=left_out), band=False)
    assert without.graph_cuts.device_s == 0
    assert found.iteration_s - without.iteration_s == pytest.approx(found.graph_cuts.device_s, rel=0.2)
    assert (
        "was not counted and costs nothing here" in predict(Job(source(), DGX, options=options), band=False).notes[-1]
    )
    assert predict(Job(counted, DGX), band=False).graph_cuts is None


def test_one_graph_hides_nothing_and_buckets_begin_when_their_graph_is_over():
    whole = source(size=5_000_000)
    options = Options(caps=BucketCaps(bucket_cap_mb_list=(100, 1000)), compiled=True)
    eager, compiled = (
        summarise(simulate(whole, DGX.place(), replace(options, compiled=each))) for each in (False, True)
    )
    assert [len(b.parameters) for b in compiled.buckets] == [len(b.parameters) for b in eager.buckets]
    assert compiled.buckets[0].ready_s > eager.buckets[0].ready_s
    assert compiled.iteration_s > eager.iteration_s
    gradients = simulate(whole, DGX.place(), options).of_rank(0)[0].gradients
    moments = sorted(gradient.ready_s for gradient in gradients)
    apart = sum(later - earlier > 2e-3 for earlier, later in pairwise(moments))
    graphs = graph_splits(whole.parameters, options.caps, whole.arrival_order())
    assert 1 + apart == len(graphs) == 2, "copies into buckets are all that lies between"


def test_a_compiled_step_that_the_host_holds_up_pays_for_its_graphs():
    slow = source(host_share=2.0, size=300_000)
    options = Options(caps=BucketCaps(bucket_cap_mb=1))
    graphs = graph_splits(slow.parameters, options.caps, slow.arrival_order())
    eager, compiled = (
        predict(Job(slow, DGX, options=replace(options, compiled=each)), band=False) for each in (False, True)
    )
    further_s = (len(graphs) - 1) * Costs.of("nccl", None).graph_s
    # Gradients that come together leave the last bucket's hooks and launches after the host's time.
    assert compiled.iteration_s - eager.iteration_s == pytest.approx(further_s, rel=0.25)
    assert compiled.local_s == pytest.approx(eager.local_s), "one process is one graph"


def test_what_crosses_cuts_is_doubted_where_it_was_counted_and_not_given():
    counted = with_edges(1e9)
    options, given = Options(caps=CAP, compiled=True), {"nccl.ddp.graph_passes": 2.0}
    known = Calibration.priors("nccl").with_values(given, source="given")

    def doubts(*of, calibration=None):
        return [each.name for each in predict(Job(*of, options=options, calibration=calibration)).doubts]

    assert "traffic where torch.compile splits the graph" in doubts(counted, DGX)
    assert "memory traffic where torch.compile splits the graph" not in doubts(counted, DGX, calibration=known)
    assert "memory traffic where torch.compile splits the graph" not in doubts(source(), DGX)
