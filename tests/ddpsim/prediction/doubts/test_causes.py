"""The doubts of a prediction: which there are, and that each is what its cause changes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ddpsim import Calibration, Options, load_topology, load_workload
from ddpsim.collectives.constant import GIVEN
from ddpsim.prediction.doubts.causes import doubts_of, pace_of
from ddpsim.prediction.doubts.constants import doubt_of
from ddpsim.prediction.doubts.spreads import DDP_HOST, PACE
from ddpsim.prediction.models import Model
from ddpsim.prediction.predict import gain_band, predict
from ddpsim.simulation.job import Job
from ddpsim.workload.anchors import MEASURED_ON, TERM_SHARES, Anchor
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.gpus import gpu_named
from ddpsim.workload.optimizers import optimizer_named
from ddpsim.workload.profile import Phase

MACHINE = load_topology("dgx-1v")
PRIORS = Calibration.priors("nccl")
MODEL = load_workload("resnet50@v100-fp32-b32")


def names(workload=MODEL, ranks=8, options=None, calibration=None):
    return {d.name for d in doubts_of(workload, MACHINE.place(1, ranks), options or Options(), calibration, [1 << 20])}


def test_each_cause_that_nobody_measured_is_one_doubt():
    own = {
        "estimated compute times, scaled to a published step",
        "host launches",
        "DDP's host costs",
        "copies into buckets",
    }
    together = {
        "allreduce over NVLink",
        "slowdown where computation overlaps collectives",
        "speed differences between GPUs",
    }
    assert names() == own | together
    assert names(ranks=1) == own
    assert names(options=Options(comm="noop")) == own | {"speed differences between GPUs"}
    captured = replace(MODEL, estimated=False)
    assert names(captured) == names() - own | {"captured compute times", "DDP's host costs", "copies into buckets"}
    by_user = replace(MODEL, provenance={"scaled_to": "given by the user"})
    counted = replace(MODEL, provenance={TERM_SHARES: {}})
    carried = replace(MODEL, provenance={TERM_SHARES: {}, MEASURED_ON: "A100"})
    kinds = (replace(MODEL, provenance={}), counted, MODEL, carried, by_user, captured)
    assert [pace_of(each) for each in kinds] == list(PACE)


def known(*anchors):
    return EstimateOptions(anchors=anchors, optimizer=optimizer_named("sgd"))


def test_a_step_that_was_given_is_known_whatever_fills_it():
    """Alone it is the given step; beside seven others it is never below that, less the noise of its measurement."""
    shape = ModelShape.of(MODEL, load_workload("resnet50").operators)
    for step_s in (0.03, 0.1, 0.2):
        given = estimate(shape, gpu_named("V100"), "fp32", known(Anchor("step", step_s)))
        alone = predict(Job(given, MACHINE, gpus_per_node=1, options=Options(comm="noop")))
        assert alone.local_s == pytest.approx(step_s, rel=0.02)
        together = predict(Job(given, MACHINE))
        assert together.low_s >= alone.local_s * math.exp(PACE["measured"].low) * 0.999
        assert "host launches" not in {doubt.name for doubt in together.doubts} or step_s > 0.1


def test_a_step_longer_than_host_and_device_is_the_devices_and_may_be_the_hosts():
    shape = ModelShape.of(MODEL, load_workload("resnet50").operators)
    plain = estimate(shape, gpu_named("V100").with_fitted(), "fp32", known())
    phases = (plain.forward, plain.backward, plain.optimizer)
    host_s, device_s = (sum(float(getattr(p, clock)[0]) for p in phases) for clock in ("host_s", "device_s"))
    given_s = 1.2 * max(host_s, device_s)
    given = estimate(shape, gpu_named("V100").with_fitted(), "fp32", known(Anchor("step", given_s)))
    assert sum(float(p.device_s[0]) for p in (given.forward, given.backward, given.optimizer)) == pytest.approx(given_s)
    assert sum(float(p.host_s[0]) for p in (given.forward, given.backward, given.optimizer)) == pytest.approx(host_s)


def test_a_step_that_repeats_as_devices_do_is_the_devices_and_its_noise_is_its_spread():
    near = {
        name: Phase(0.9 * phase.device_s, phase.device_s)
        for name in ("forward", "backward", "optimizer")
        for phase in [getattr(MODEL, name)]
    }

    def found(repeats):
        told = {"scaled_to": "given by the user", "scale": 1.2} | ({} if repeats is None else {"repeats": repeats})
        given = replace(MODEL, provenance=told, **near)
        return {each.name: each for each in doubts_of(given, MACHINE.place(1, 8), Options(), None, [1 << 20])}

    either, fills = "whether host or device fills the step", "the given step time"
    unknown, as_host, as_device = (found(repeats) for repeats in (None, 0.03, 0.001))
    assert {either in each for each in (unknown, as_host)} == {True}
    assert either not in as_device
    assert as_device["host launches"].high.host == pytest.approx(1 / 0.9)
    assert as_device["host launches"].low.host < 1
    assert as_device[fills].high.compute == pytest.approx(1.001)
    assert as_host[fills].low.compute == pytest.approx(1 / 1.03)
    assert unknown[fills].high.compute == pytest.approx(math.exp(PACE["measured"].high))


def test_a_constant_that_was_measured_or_given_leaves_the_doubt_of_priors():
    every = {f"nccl.ddp.{name}": 1.2 for name in ("enter_s", "compute_slowdown", "communication_slowdown")}
    assert "slowdown where computation overlaps collectives" not in names(
        calibration=PRIORS.with_values(every, source=GIVEN)
    )
    measured = names(calibration=PRIORS.with_values(every, source="microbenchmark"))
    assert "slowdown where computation overlaps collectives" not in measured
    assert "DDP's measured costs" in measured


def test_a_step_on_one_gpu_is_as_unsure_as_its_pace():
    bound = replace(MODEL, estimated=False, synchronises=())
    found = predict(Job(bound, MACHINE, gpus_per_node=1))
    [pace] = [doubt for doubt in found.doubts if doubt.name == "captured compute times"]
    work_s = sum(float(phase.device_s[0]) for phase in (bound.forward, bound.backward, bound.optimizer))
    assert pace.high - found.iteration_s == pytest.approx(work_s * math.expm1(PACE["captured"].high), rel=0.02)
    assert found.low_s <= pace.low < found.iteration_s < pace.high <= found.high_s


def test_a_gain_is_compared_under_the_same_draws():
    default = predict(Job(MODEL, MACHINE, nodes=2))
    low, high = gain_band(default, default)
    assert (low, high) == (0.0, 0.0)
    shorter = replace(
        default,
        summary=replace(default.summary, iteration_s=default.iteration_s * 0.9),
        ends=tuple(replace(ends, steps_s=tuple(0.9 * step_s for step_s in ends.steps_s)) for ends in default.ends),
    )
    assert gain_band(default, shorter) == pytest.approx((0.1, 0.1))


def test_doubts_move_no_central_prediction_and_steps_are_doubted_by_flows():
    bare = predict(Job(MODEL, MACHINE, nodes=2), band=False)
    full = predict(Job(MODEL, MACHINE, nodes=2))
    assert (bare.iteration_s, bare.doubts) == (full.iteration_s, ())
    steps = predict(Job(MODEL, MACHINE, gpus_per_node=2, options=Options(fidelity="steps")))
    assert steps.low_s < steps.iteration_s < steps.high_s


def test_a_constant_has_the_doubt_of_what_is_known_of_it():
    hook = PRIORS.constants["nccl.ddp.hook_s"]
    assert doubt_of(hook) == pytest.approx((hook.value * math.exp(DDP_HOST.low), hook.value * math.exp(DDP_HOST.high)))
    assert doubt_of(replace(hook, source=GIVEN, fitted=True)) == (hook.value, hook.value)
    assert doubt_of(PRIORS.constants["nccl.version"]) == (None, None)
    slow = replace(PRIORS.constants["nccl.ddp.compute_slowdown"], value=1.1, fitted=True)
    assert doubt_of(slow) == pytest.approx((1 + 0.1 * math.exp(-0.27), 1 + 0.1 * math.exp(0.27)))


def test_a_step_estimated_for_a_gpu_of_amd_may_be_slower_by_what_one_was():
    amd, nvidia = (Model.of("resnet50").on(load_topology(name)) for name in ("mi300x-8", "dgx-h100"))
    machine = load_topology("mi300x-8").place()
    found = {d.name: d for d in doubts_of(amd, machine, Options(backend="rccl"), None, [1 << 20])}
    doubt = found["AMD's software"]
    assert doubt.low is None
    assert doubt.high.compute == pytest.approx(2.9, abs=0.05)
    assert "AMD's software" not in {d.name for d in doubts_of(nvidia, MACHINE.place(), Options(), None, [1 << 20])}
    captured = replace(amd, estimated=False)
    assert "AMD's software" not in {d.name for d in doubts_of(captured, machine, Options(), None, [1 << 20])}
