"""What makes a schedule's simulation cheaper changes nothing that it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import SimulatedIterations
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload.files import load_workload

WORKLOAD = load_workload("gpt2-small@h100-amp-b8")
PLACEMENT = load_topology("dgx-h100").place(2)
SCHEMES = ("dear", "zero1", "fsdp2", "fsdp2:noreshard", "hsdp:8", "zero3")


ONE = SimulatedIterations(1, 2, 3)
"""The second iteration counts, and one more is simulated."""


def period_s(scheme: str, extent: SimulatedIterations) -> float:
    return summarise(simulate(WORKLOAD, PLACEMENT, Options(scheme=scheme), extent=extent)).iteration_s


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_the_last_iteration_leaves_in_flight_changes_no_period(scheme: str) -> None:
    assert period_s(scheme, replace(ONE, total=ONE.end)) == pytest.approx(period_s(scheme, ONE), rel=1e-9)


@pytest.mark.parametrize("scheme", ["dear", "zero1", "fsdp2", "hsdp:8", "zero3", "zero1:deepspeed"])
def test_accumulated_gradients_are_reduced_once(scheme: str) -> None:
    """Micro-batches gather what they need, and reduce nothing but the last."""
    one = SimulatedIterations(2, 4, 6)
    found = simulate(WORKLOAD, PLACEMENT, Options(scheme=scheme, accumulate=2), extent=one)
    first, last = ([b for b in it.buckets if b.operation.reduces] for it in found.of_rank(0)[:2])
    assert not first
    assert sum(b.size_bytes for b in last) >= WORKLOAD.gradient_bytes


def test_only_schemes_around_ddp_broadcast_buffers() -> None:
    workload = load_workload("resnet50@h100-amp-b32")
    found = {
        scheme: summarise(simulate(workload, PLACEMENT, Options(scheme=scheme), extent=ONE)).buffer_broadcast_s
        for scheme in ("ddp", "naive", "fsdp2", "hsdp:8", "zero1:deepspeed", "zero3")
    }
    assert {scheme for scheme, seconds in found.items() if seconds > 0} == {"ddp", "naive"}
