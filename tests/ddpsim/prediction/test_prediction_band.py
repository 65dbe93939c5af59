"""The band of a predicted step: what its collectives' bands and its computing leave open."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from ddpsim import Options, Prediction, load_topology
from ddpsim.bucketing import BucketCaps, Parameter
from ddpsim.collectives.calibration import Calibration, Curve, CurvePoint
from ddpsim.collectives.constant import GIVEN
from ddpsim.common.units import MIB
from ddpsim.planning.plan_file import plan_from
from ddpsim.prediction.doubts.doubt import Effect
from ddpsim.prediction.doubts.spreads import DOUBT, at_end
from ddpsim.prediction.predict import predict, with_band
from ddpsim.simulation.ddp_costs import remove_overlap_costs
from ddpsim.simulation.job import Job
from ddpsim.workload import Buffer, Workload
from ddpsim.workload.profile import Phase
from tests.ddpsim.collectives.groups import group_on

MACHINE = load_topology("p3.8xlarge")
START = Calibration.priors("nccl")
ALIKE = {"nccl.ddp.pace_spread": 0.0, "nccl.ddp.shared_compute_slowdown": 1.0}
UNSURE = replace(
    remove_overlap_costs("nccl", START.with_values(ALIKE, source=GIVEN)), residual_low=-0.1, residual_high=0.2
)


def workload(forward_s: list[float]) -> Workload:
    one = np.ones(len(forward_s))
    return Workload(
        name="one bucket", device="V100", precision="fp32", batch_size=8, threads=None, estimated=True,
        parameters=(Parameter("weight", (4096, 1024)),), buffers=(),
        forward=Phase(0.001 * one, np.array(forward_s)), backward=Phase(0.001 * one, 0.008 * one),
        optimizer=Phase(0.0005 * one, 0.001 * one), gradient_hook_s=0.001 * one[:, None],
        gradient_ready_s=0.008 * one[:, None], provenance={},
    )  # fmt: skip


def predicted(forward_s: list[float], calibration: Calibration | None, nodes: int = 2) -> Prediction:
    options = Options(caps=BucketCaps(bucket_cap_mb=25), iterations=200 if len(forward_s) > 1 else 2)
    return predict(Job(workload(forward_s), MACHINE, nodes=nodes, options=options, calibration=calibration))


def doubt(found: Prediction, name: str) -> Effect:
    """Return the doubt whose name begins so."""
    [one] = [each for each in found.doubts if each.name.startswith(name)]
    return one


def test_a_step_is_as_unsure_as_the_collective_that_it_waits_for() -> None:
    found = predicted([0.004], UNSURE)
    wire_s = group_on(MACHINE.place(2)).simulate_s(16 * MIB)
    assert found.summary.exposed_comm_s == pytest.approx(wire_s, rel=0.01)
    wire = doubt(found, "allreduce over")
    assert wire.high - found.iteration_s == pytest.approx(wire_s * (math.exp(0.2) - 1), rel=0.01)
    assert found.iteration_s - wire.low == pytest.approx(wire_s * (1 - math.exp(-0.1)), rel=0.01)


def test_computing_adds_its_own_spread_independently() -> None:
    found = predicted(np.random.default_rng(0).normal(0.02, 0.002, 100).tolist(), UNSURE)
    jitter = doubt(found, "jitter")
    assert (jitter.low, jitter.high) == (found.summary.iteration_low_s, found.summary.iteration_high_s)
    assert jitter.high - found.iteration_s > 1e-4
    highs = [each.high - found.iteration_s for each in found.doubts]
    assert found.high_s - found.iteration_s == pytest.approx(math.hypot(*highs))


def test_a_band_may_be_left_out_and_joined_later() -> None:
    options = Options(caps=BucketCaps(bucket_cap_mb=25), iterations=2)
    bare = predict(Job(workload([0.004]), MACHINE, nodes=2, options=options, calibration=UNSURE), band=False)
    assert (bare.low_s, bare.high_s) == (bare.summary.iteration_low_s, bare.summary.iteration_high_s)
    assert with_band(bare, UNSURE).document() == predicted([0.004], UNSURE).document()
    assert bare.plan == plan_from(bare.trace.provenance["plan"], bare.workload.parameters, "plan")


def test_what_hides_or_does_not_happen_adds_nothing() -> None:
    alone = predict(Job(workload([0.004]), MACHINE, gpus_per_node=1, calibration=UNSURE))
    assert not [each for each in alone.doubts if each.name.startswith("allreduce")]
    sleeping = replace(workload([0.004]), device="V100", timed=True)
    measured = Calibration(
        "gloo",
        {name: replace(c, fitted=True, source=GIVEN) for name, c in Calibration.priors("gloo").constants.items()},
    )
    sure = predict(Job(sleeping, load_topology("lab-flat"), gpus_per_node=1, nodes=1, calibration=measured))
    assert (sure.low_s, sure.high_s, sure.doubts) == (sure.iteration_s, sure.iteration_s, ())
    assert not sure.document()["doubts"]


def test_measured_rows_narrow_the_band_and_correct_single_transfers_too() -> None:
    placement = MACHINE.place(2)
    plain = group_on(placement, isolated=False)
    points = tuple(CurvePoint(size, 1.3 * plain.estimate_s(size)) for size in (4 * MIB, 16 * MIB, 64 * MIB))
    curve = Curve(placement.topology.fingerprint(), 2, 4, points)
    measured = replace(UNSURE, curves=(curve,))
    narrow, wide, priors = (doubt(predicted([0.004], each), "allreduce") for each in (measured, UNSURE, None))
    assert narrow.width < wide.width / 2 < priors.width / 2
    for fidelity in ("flow", "steps"):
        both = group_on(placement, calibration=measured, fidelity=fidelity, isolated=False)
        assert both.simulate_s(16 * MIB) == pytest.approx(points[1].time_s, rel=0.02)


def test_measured_costs_of_ddp_are_as_unsure_as_microbenchmarks_repeat() -> None:
    costs = {"gloo.ddp.broadcast_s": 0.02, "gloo.ddp.copy_Bps": 1e9, "gloo.ddp.communication_slowdown": 1.5}
    measured = Calibration.priors("gloo").with_values(costs, source="measured")
    low, high = (at_end(measured, end) for end in (-1, 1))
    for name, value in costs.items():
        extra = 1 if "slowdown" in name else 0
        for end, sign in ((low, -1), (high, 1)):
            direction = -sign if "Bps" in name else sign
            assert math.log((end[name] - extra) / (value - extra)) == pytest.approx(direction * DOUBT)
    assert high["gloo.ddp.hook_s"] == measured["gloo.ddp.hook_s"]
    spread = measured.with_values({"gloo.ddp.pace_spread": 0.02}, source="measured")
    assert at_end(spread, 1)["gloo.ddp.pace_spread"] == pytest.approx(0.02 * math.exp(DOUBT))
    source = replace(workload([0.02]), buffers=(Buffer("mean", (8,)),), device="cpu")
    found = predict(Job(source, load_topology("lab-flat"), calibration=measured))
    costs_of = doubt(found, "DDP's measured costs")
    copied_s = 3 * source.gradient_bytes / 1e9
    assert costs_of.high - found.iteration_s > 0.02 * (math.exp(DOUBT) - 1)
    assert costs_of.high - found.iteration_s < (0.02 + copied_s) * math.exp(DOUBT)
    assert costs_of.low < found.iteration_s - 0.02 * (1 - math.exp(-DOUBT))
