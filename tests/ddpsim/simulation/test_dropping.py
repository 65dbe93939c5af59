"""Iterations that leave layers out, in the simulation."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.prediction.predict import predict
from ddpsim.simulation.engine import simulate, simulate_local
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import PARTS
from ddpsim.workload.iteration_profile import paces, without
from tests.ddpsim.simulation.builders import named, workload

LAYERS = {f"layer{n}": 0.5 for n in range(1, 7)}
EACH = BucketCaps(bucket_cap_mb=0)


@pytest.mark.parametrize("device", ["cpu", "V100"])
def test_what_is_left_keeps_its_own_time(device):
    source = workload(device=device, iterations=3, jitter=0.2)
    for pace in paces(source):
        left = without(pace, {2, 5}, source.parameters)
        assert left.order == tuple(i for i in pace.order if i not in (2, 5))
        assert left.work.sum() == pytest.approx(pace.work.sum() * 6 / 8)
        assert left.forward_work == pytest.approx(pace.forward_work * 6 / 8)
        assert left.optimizer_work == pytest.approx(pace.optimizer_work * 6 / 8)
        assert without(pace, (), source.parameters).host.tolist() == pace.host.tolist()


def test_a_step_of_which_half_is_left_out_takes_half():
    source = named(workload())
    everything, nothing, half = (
        fmean(it.iteration_s for it in simulate_local(source, Options(drop=drop, iterations=400)))
        for drop in ({}, dict.fromkeys(LAYERS, 1.0), LAYERS)
    )
    assert nothing == pytest.approx(everything / 4)
    assert half == pytest.approx((everything + nothing) / 2, rel=0.02)


@pytest.mark.parametrize("device", ["cpu", "V100"])
@pytest.mark.parametrize("cycle", [1, 3])
def test_what_is_left_out_is_not_sent_and_all_ranks_leave_out_the_same(device, cycle):
    source = named(workload(device=device, iterations=4, jitter=0.3))
    given = Options(backend="gloo", caps=EACH, drop=LAYERS, iterations=12, accumulate=cycle, stragglers={1: 1.4})
    trace = simulate(source, load_topology("loopback").place(1, 3), given)
    plan = given.drop_plan(source.parameters)
    for it in trace.iterations:
        dropped = plan.parameters_dropped(it.index // cycle + 1)
        sent = {index for bucket in it.buckets for index in bucket.parameters}
        assert sent == (set(range(8)) - dropped if it.synced else set())
        assert {g.parameter for g in it.gradients} == set(range(8)) - dropped


def test_the_summary_knows_buckets_that_some_iterations_leave_out():
    source = named(workload())
    options = Options(backend="gloo", caps=EACH, drop=LAYERS)
    prediction = predict(Job(source, load_topology("loopback"), gpus_per_node=2, options=options))
    assert [bucket.index for bucket in prediction.summary.buckets] == list(range(8))
    assert prediction.iteration_s < predict(Job(source, load_topology("loopback"), gpus_per_node=2)).iteration_s


def test_everything_may_be_left_out():
    source = named(workload())
    drop = dict.fromkeys([f"layer{n}" for n in range(8)], 1.0)
    trace = simulate(source, load_topology("loopback").place(1, 2), Options(backend="gloo", drop=drop))
    assert all(not it.buckets and it.backward_compute_s == pytest.approx(0, abs=1e-9) for it in trace.iterations)


def test_a_recorded_iteration_keeps_a_gradient():
    source = named(workload(iterations=2))
    for times in (source.gradient_hook_s, source.gradient_ready_s):
        times[1, 1:] = np.nan
    here = load_topology("loopback").place(1, 2)
    with pytest.raises(WorkloadError, match="drop: recorded iteration 1 has gradients of no layer that stays"):
        simulate(source, here, Options(backend="gloo", drop={"layer0": 0.1}))
    for drop in ({"layer0": 0.0}, {"layer1": 1.0}, dict.fromkeys([f"layer{n}" for n in range(8)], 1.0)):
        assert simulate(source, here, Options(backend="gloo", drop=drop)).iterations


@pytest.mark.parametrize("kind", ["aligned", "remapped"])
def test_buckets_that_spare_every_byte_left_out(kind):
    """Of equal layers, two a bucket, the bytes sent are those of what is left; torch's send more, and later."""
    source = named(workload())
    caps = BucketCaps(bucket_cap_mb=1.9)
    given = {"backend": "gloo", "drop": LAYERS, "iterations": 12, "caps": caps}
    sent, steps = {}, {}
    for buckets in ("mixed", kind):
        options = Options(drop_buckets=buckets, **given)
        trace = simulate(source, load_topology("lab-flat").place(2, 1), options)
        plan, sizes = options.drop_plan(source.parameters), [p.size_bytes for p in source.parameters]
        sent[buckets] = [sum(bucket.size_bytes for bucket in it.buckets) for it in trace.iterations]
        steps[buckets] = fmean(it.iteration_s for it in trace.iterations)
        left = [sum(sizes) - sum(sizes[i] for i in plan.parameters_dropped(it.index + 1)) for it in trace.iterations]
    assert sent[kind] == left
    assert sum(sent["mixed"]) > sum(sent[kind])
    assert steps[kind] < steps["mixed"]


def test_moving_up_costs_the_host_where_what_is_left_out_changes():
    source = named(workload())
    free = Calibration.priors("gloo").with_values({"gloo.ddp.rebuild_s": 1e-15}, source="test")
    dear = Calibration.priors("gloo").with_values({"gloo.ddp.rebuild_s": 1e-4}, source="test")
    for probability, changes in ((1.0, 0), (0.5, 1)):
        options = Options(drop={"layer1": probability}, drop_buckets="remapped", iterations=200, backend="gloo")
        here = load_topology("loopback").place(1, 2)
        cheap, paid = (
            fmean(it.iteration_s for it in simulate(source, here, options, each).iterations) for each in (free, dear)
        )
        # Half of the iterations leave the layer out, of these every second one after one that did not.
        assert paid - cheap == pytest.approx(changes * 7 * 1e-4 / 4, rel=0.25, abs=1e-9)


def test_buckets_of_what_is_dropped_say_nothing_where_nothing_is():
    with pytest.raises(InputError, match="`drop_buckets=aligned` says nothing without `drop`"):
        Options(drop_buckets="aligned")


@pytest.mark.parametrize("cycle", [1, 2])
def test_where_iterations_differ_by_design_the_step_is_their_mean(cycle):
    source, here = named(workload(gradients=8)), load_topology("loopback")
    drop = {f"layer{i}": 0.5 for i in range(2)}
    for seed in range(3):
        asked = Options(drop=drop, seed=seed, accumulate=cycle)
        found = predict(Job(source, here, gpus_per_node=2, options=asked))
        periods = [it.iteration_s for it in found.trace.of_rank(0)]
        assert len(set(np.round(periods, 6))) > 1
        document = found.document()
        assert document["iteration_s"] == pytest.approx(fmean(periods))
        assert sum(document[part] for part in PARTS) == pytest.approx(document["iteration_s"])
        assert document["iteration_low_s"] <= document["iteration_s"] <= document["iteration_high_s"]
        assert document["iteration_statistic"] == "mean"
        alone = [it.iteration_s for it in simulate_local(source, asked)]
        assert document["local_s"] == pytest.approx(fmean(alone))


def test_the_output_says_what_a_step_is_of_many():
    source, here = named(workload(gradients=8)), load_topology("loopback")
    for options, statistic in (
        ({}, "median"),
        ({"accumulate": 2}, "median of cycle means"),
        ({"drop": {"layer0": 0.0}}, "median"),
    ):
        found = predict(Job(source, here, gpus_per_node=2, options=Options(**options)))
        assert found.document()["iteration_statistic"] == statistic


def test_a_seldom_outlier_does_not_leave_the_mean_outside_its_band():
    source, here = named(workload(gradients=8)), load_topology("loopback")
    asked = Options(drop={"layer0": 0.04}, iterations=60)
    found = predict(Job(source, here, gpus_per_node=2, options=asked)).summary
    assert found.iteration_low_s <= found.iteration_s <= found.iteration_high_s
