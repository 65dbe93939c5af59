"""Schedules in the simulator, held to closed forms and to DDP's own path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import simpy

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.execute import Collectives
from ddpsim.errors import InputError
from ddpsim.operations import Operation
from ddpsim.simulation import Options, simulate
from ddpsim.simulation.costs import Costs
from ddpsim.topology.placement import Placement
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.trace.records import Trace
from ddpsim.workload import Workload
from ddpsim.workload.forward_use import ForwardUse
from ddpsim.workload.single_clock import single_clock
from tests.ddpsim.simulation.builders import ALIKE, workload

DDP_AS_A_SCHEDULE = "ddpsim.schedules.schemes:ddp"
SMALL = BucketCaps(bucket_cap_mb=2)


def place(name: str = "loopback", nodes: int = 1, ranks: int = 2) -> Placement:
    return load_topology(name).place(nodes, ranks)


def wire_s(placement: Placement, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> float:
    return Collectives(simpy.Environment(), placement, backend="gloo").estimate_s(size_bytes, operation)


def period(trace: Trace) -> float:
    return summarise(trace).iteration_s


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


def test_naive_is_the_computation_then_an_allreduce_a_gradient() -> None:
    # Each allreduce alone on the wire would be a sum of two at a time: gloo keeps two in flight.
    source, placement = workload(gradients=1), place()
    costs = Costs.of("gloo", None)
    expected = 0.03 + 0.08 + 0.01 + costs.forward_s + costs.launch_s + costs.finish_s + wire_s(placement, 1_000_000)
    found = period(simulate(source, placement, Options(backend="gloo", scheme="naive")))
    assert found == pytest.approx(expected, rel=1e-9)


def test_flat_copies_all_gradients_and_reduces_them_at_once() -> None:
    source, placement, costs = workload(), place(), Costs.of("gloo", None)
    size = source.gradient_bytes
    own = costs.forward_s + 2 * costs.copies_s(8, size) + costs.launch_s + costs.finish_s
    found = period(simulate(source, placement, Options(backend="gloo", scheme="flat")))
    assert found == pytest.approx(0.12 + own + wire_s(placement, size), rel=1e-9)


@pytest.mark.parametrize("scheme", ["ddp", "dear", "priority", "zero1"])
def test_without_overlap_no_step_is_shorter(scheme: str) -> None:
    for source, placement in ((workload(backward=0.3), place()), (workload(device="V100"), place("dgx-1v", 2, 8))):
        on, off = (
            period(simulate(source, placement, Options(backend="gloo", caps=SMALL, scheme=scheme, overlap=overlap)))
            for overlap in ("on", "off")
        )
        assert off >= on


@pytest.mark.parametrize(
    "given",
    [
        {"compression": "fp16"}, {"drop": {"layer": 0.5}}, {"order": "once"}, {"find_unused_parameters": True},
        {"process_groups": 2},
    ],
)  # fmt: skip
def test_what_only_ddp_has_is_refused_beside_another_scheme(given: dict[str, object]) -> None:
    for asked in ({"scheme": "flat"}, {"overlap": "off"}):
        with pytest.raises(InputError, match="are both given"):
            Options(**asked, **given)  # type: ignore[arg-type]


def test_a_gpu_runs_every_scheme() -> None:
    source = workload(device="V100", gradients=8)
    for scheme in ("naive", "flat", "dear", "zero1", "zero2", "priority", "priority:1MiB"):
        found = simulate(source, place("dgx-1v", 2, 8), Options(scheme=scheme, caps=SMALL), ALIKE)
        assert period(found) > 0.11


FREE = ALIKE.with_values(
    {constant: 1e18 if constant.endswith("Bps") else 0.0 for constant in ALIKE.constants if ".ddp." in constant and (
        constant.endswith(("_s", "_Bps", "late_kernels", "pace_spread", "multiprocessors", "passes", "tail_share"))
    )},
    source="nothing but wires costs anything",
)  # fmt: skip


def equal_buckets(count: int, wire_over_backward: float, placement: Placement) -> Workload:
    """Return equal gradients, one a bucket, that come at equal intervals; forward, half as long, needs them likewise."""
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
