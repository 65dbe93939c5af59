"""Schedules in the simulator, held to closed forms and to DDP's own path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.bucketing.order.predictors import MeanReady
from ddpsim.collectives.execute import Collectives
from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.schedules.points import Point, PointKind
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.schemes import ddp, naive
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import SimulatedIterations, resolve
from ddpsim.topology.placement import Placement
from ddpsim.trace.json import read_trace, write_trace
from ddpsim.trace.metrics import summarise
from ddpsim.trace.records import COLLECTIVES
from ddpsim.workload import Phase, Workload
from ddpsim.workload.profile import ForwardUse
from ddpsim.workload.replayed import single_clock
from tests.ddpsim.simulation.builders import ALIKE, period, place, wire_s, workload

DDP_AS_A_SCHEDULE = "ddpsim.schedules.schemes:ddp"
SMALL = BucketCaps(bucket_cap_mb=2)


@pytest.mark.parametrize(
    ("source", "given"),
    [
        (workload(buffers=3, iterations=3, jitter=0.2), Options(backend="gloo", caps=SMALL)),
        (single_clock(workload(device="V100", iterations=3, jitter=0.2)), Options(backend="gloo", caps=SMALL)),
        (workload(device="V100", buffers=3), Options(caps=SMALL, accumulate=3)),
        (workload(device="V100", synchronises=("after_backward",)), Options(caps=SMALL, gradient_as_bucket_view=True)),
        (workload(device="V100", iterations=2, jitter=0.5), Options(backend="gloo", accumulate=2, sync="every")),
    ],
)
def test_ddp_as_a_schedule_is_ddp(source: Workload, given: Options) -> None:
    placement = place() if source.one_clock else place("dgx-1v", 2, 8)
    ddp, schedule = (
        simulate(source, placement, replace(given, scheme=scheme)) for scheme in ("ddp", DDP_AS_A_SCHEDULE)
    )
    assert schedule.iterations == ddp.iterations
    assert schedule.spans == ddp.spans


def test_the_reducers_schedule_is_another_where_buckets_are() -> None:
    source = workload(gradients=8)
    given = Options(backend="gloo", caps=BucketCaps(bucket_cap_mb=1.0), order="drift:1:2", predictor=Backwards)
    [setting, *_] = resolve(source, place(), given).rank_configs
    schedules = [setting.scheduled(iteration).schedule for iteration in range(4)]
    for iteration, schedule in enumerate(schedules):
        assert [message.parameters for message in schedule] == setting.plans.plan(iteration).groups()
        assert schedule == ddp(
            SchemeInputs(parameters=source.parameters, buckets=setting.plans.plan(iteration).groups(), world_size=2)
        )
    assert schedules[0] != schedules[-1]
    # Messages that stay are those that the iteration before was given, so that what is in flight is known.
    assert setting.scheduled(2) is setting.scheduled(3)


class Backwards(MeanReady):
    """Expects gradients in the reverse of the order in which they come."""

    def predict(self) -> list[float]:
        return [-time for time in super().predict()]


def test_naive_is_the_computation_then_an_allreduce_a_gradient() -> None:
    # Each allreduce alone on the wire would be a sum of two at a time: gloo keeps two in flight.
    source, placement = workload(gradients=1), place()
    # What divides the gradient by the ranks, before gloo sums it, is a pass over it.
    costs = Costs.of("gloo", None)
    own = costs.forward_s + costs.copies_s(1, 1_000_000) + costs.launch_s + costs.finish_s
    expected = 0.03 + 0.08 + 0.01 + own + wire_s(placement, 1_000_000)
    found = period(simulate(source, placement, Options(backend="gloo", scheme="naive")))
    assert found == pytest.approx(expected, rel=1e-9)


def test_flat_copies_all_gradients_and_reduces_them_at_once() -> None:
    source, placement, costs = workload(), place(), Costs.of("gloo", None)
    size = source.gradient_bytes
    own = costs.forward_s + 2 * costs.copies_s(8, size) + costs.launch_s + costs.finish_s
    found = period(simulate(source, placement, Options(backend="gloo", scheme="flat")))
    assert found == pytest.approx(0.12 + own + wire_s(placement, size), rel=1e-9)


@pytest.mark.parametrize("scheme", ["dear", "priority", "zero1"])
def test_buffers_wait_for_no_message_that_is_still_on_its_way(scheme: str) -> None:
    source, given = workload(buffers=3), Options(backend="gloo", caps=SMALL)
    alone, beside = (
        summarise(simulate(source, place(), replace(given, scheme=name))).buffer_broadcast_s for name in ("ddp", scheme)
    )
    longest_s = wire_s(place(), source.gradient_bytes)
    assert alone <= beside < alone + longest_s / 10


@pytest.mark.parametrize("scheme", ["ddp", "dear", "priority", "zero1"])
def test_without_overlap_no_step_is_shorter(scheme: str) -> None:
    for source, placement in ((workload(backward=0.3), place()), (workload(device="V100"), place("dgx-1v", 2, 8))):
        on, off = (
            period(simulate(source, placement, Options(backend="gloo", caps=SMALL, scheme=scheme, overlap=overlap)))
            for overlap in ("on", "off")
        )
        assert off >= on


FREE = ALIKE.with_values(
    {constant: 1e18 if constant.endswith("Bps") else 0.0 for constant in ALIKE.constants if ".ddp." in constant and (
        constant.endswith(("_s", "_Bps", "late_kernels", "pace_spread", "multiprocessors", "passes", "tail_share"))
    )},
    source="nothing but wires costs anything",
)  # fmt: skip


def equal_buckets(count: int, wire_over_backward: float, placement: Placement) -> Workload:
    """Return equal gradients, one a bucket, at equal intervals; forward, half as long, needs them likewise."""
    size_bytes = 4 * 4_000_000
    one_s = Collectives(None, placement, backend="nccl", calibration=FREE).estimate_s(size_bytes)
    backward = count * one_s / wire_over_backward
    use = np.arange(count) / count * backward / 2
    source = workload(
        device="V100", gradients=count, size=4_000_000, forward=backward / 2, backward=backward, optimizer=0.0,
        host_share=1e-3,
    )  # fmt: skip
    return replace(source, forward_use_s=ForwardUse(use * 1e-3, use))


@pytest.mark.parametrize(
    ("count", "wire_over_backward", "shorter"),
    [(16, 1.2, 1.09), (16, 1.5, 1.25), (16, 2.0, 1.21), (100, 1.2, 1.13), (100, 1.5, 1.32), (100, 2.0, 1.24)],
)
def test_urgent_buckets_first_shorten_a_step_as_on_one_link(
    count: int, wire_over_backward: float, shorter: float
) -> None:
    placement = place("dgx-1v", 2, 8)
    source, every = equal_buckets(count, wire_over_backward, placement), BucketCaps(bucket_cap_mb=0)
    in_order, urgent_first = (
        period(simulate(source, placement, Options(scheme=scheme, caps=every, fidelity="closed"), FREE))
        for scheme in ("ddp", "priority")
    )
    assert in_order / urgent_first == pytest.approx(shorter, abs=0.0051)


def test_dear_hides_its_gathers_under_a_long_forward() -> None:
    placement = place("dgx-1v", 2, 8)
    source = equal_buckets(16, 0.5, placement)
    source = replace(source, forward=Phase(source.forward.host_s, source.forward.device_s * 4))
    use = source.forward_use_s
    assert use is not None
    source = replace(source, forward_use_s=ForwardUse(use.host_s, use.device_s * 4 + 0.5 * source.backward.device_s))
    given = Options(scheme="dear", caps=BucketCaps(bucket_cap_mb=0), fidelity="closed")
    found = simulate(source, placement, given, FREE)
    computed = float((source.forward.device_s + source.backward.device_s)[0])
    assert period(found) == pytest.approx(computed, rel=1e-3)
    assert summarise(found).exposed_comm_s == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("scheme", ["naive", "flat", "dear", "zero1", "priority:1MiB"])
def test_a_trace_has_the_messages_of_its_schedule_and_is_read_back(scheme: str, tmp_path: Path) -> None:
    source, placement = workload(device="V100"), place("dgx-1v", 2, 8)
    found = simulate(source, placement, Options(scheme=scheme, caps=SMALL))
    assert found.schedule is not None
    sent = [(message.op, message.size_bytes) for message in found.schedule]
    for iteration in found.iterations:
        assert sorted((bucket.operation, bucket.size_bytes) for bucket in iteration.buckets) == sorted(sent)
    names = {span.name for span in found.spans if span.name.startswith("nccl:")}
    assert names == {COLLECTIVES[operation] for operation, _ in sent}
    write_trace(found, tmp_path)
    assert read_trace(tmp_path).iterations == found.iterations


def stuck(setup: SchemeInputs) -> Schedule:
    """A message that forward waits for, behind one that is only possible after backward."""
    first, *rest = naive(setup).messages
    early = replace(first, id="early", op=Operation.ALL_GATHER, after=(), blocks=(Point(PointKind.FORWARD, 0),))
    return Schedule(scheme="stuck", messages=(first, *rest, replace(early, id="held"), early))


def test_a_rank_that_would_wait_for_ever_is_refused_and_the_message_named() -> None:
    given = Options(backend="gloo", scheme=f"{__name__}:stuck")
    with pytest.raises(PlanError, match=r"message 'held'.* forward:0 waits for it, and it for 'p 0' before it"):
        simulate(workload(), place(), given)


@pytest.mark.parametrize("scheme", ["dear", "priority", "zero1"])
def test_few_iterations_tell_the_period_that_many_do(scheme: str) -> None:
    source, given = workload(device="V100"), Options(scheme=scheme, caps=SMALL)
    few = period(simulate(source, place("dgx-1v", 2, 8), given, extent=SimulatedIterations(1, 2, 3)))
    many = period(simulate(source, place("dgx-1v", 2, 8), given, extent=SimulatedIterations(5, 9, 10)))
    assert few == pytest.approx(many, rel=1e-9)
