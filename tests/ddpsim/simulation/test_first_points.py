"""What makes a schedule's simulation cheaper changes nothing that it says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.points import PointKind
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation import Options, simulate
from ddpsim.simulation import scheduling as scheduled_module
from ddpsim.simulation.scheduling import block_first_points
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload import Workload
from ddpsim.workload.files import load_workload
from ddpsim.workload.profile import Phase

WORKLOAD = load_workload("gpt2-small@h100-amp-b8")
PLACEMENT = load_topology("dgx-h100").place(2)
SCHEMES = ("dear", "zero1", "fsdp2", "fsdp2:noreshard", "hsdp:8", "zero3")


def period_s(scheme: str, *, whole: bool = True, **options: int) -> float:
    asked = Options(scheme=scheme, iterations=1, **options)  # type: ignore[arg-type]
    return summarise(simulate(WORKLOAD, PLACEMENT, asked, warm_up=1, whole=whole)).iteration_s


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_first_point_of_a_message_is_where_it_is_waited_for(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = period_s(scheme)
    monkeypatch.setattr(scheduled_module, "block_first_points", lambda schedule, workload: schedule)
    assert trimmed == pytest.approx(period_s(scheme), rel=1e-9)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_the_last_iteration_leaves_in_flight_changes_no_period(scheme: str) -> None:
    assert period_s(scheme, whole=False) == pytest.approx(period_s(scheme), rel=1e-9)


def test_backward_s_points_stay_where_gradients_come_in_several_orders() -> None:
    schedule = scheme_named("fsdp2").schedule(
        SchemeInputs(parameters=WORKLOAD.parameters, buckets=[tuple(range(len(WORKLOAD.parameters)))], world_size=4)
    )
    hooks = np.concatenate([WORKLOAD.gradient_hook_s, WORKLOAD.gradient_hook_s[:, ::-1]])
    turned = replace(
        WORKLOAD, gradient_hook_s=hooks, gradient_ready_s=np.maximum(hooks, WORKLOAD.gradient_ready_s.max()),
        **{name: Phase(phase.host_s.repeat(2), phase.device_s.repeat(2)) for name, phase in phases().items()},
    )  # fmt: skip

    def waiting(workload: Workload) -> list[int]:
        messages = block_first_points(schedule, workload)
        return [sum(point.kind is PointKind.BACKWARD for point in message.blocks) for message in messages]

    assert waiting(turned) == [sum(p.kind is PointKind.BACKWARD for p in m.blocks) for m in schedule]
    assert max(waiting(WORKLOAD)) == 1


def phases() -> dict[str, Phase]:
    return {name: getattr(WORKLOAD, name) for name in ("forward", "backward", "optimizer")}


@pytest.mark.parametrize("scheme", ["dear", "zero1", "fsdp2", "hsdp:8", "zero3", "zero1:deepspeed"])
def test_accumulated_gradients_are_reduced_once(scheme: str) -> None:
    """Micro-batches gather what they need, and reduce nothing but the last."""
    found = simulate(WORKLOAD, PLACEMENT, Options(scheme=scheme, iterations=1, accumulate=2), warm_up=1)
    first, last = ([b for b in it.buckets if b.operation.reduces] for it in found.of_rank(0)[:2])
    assert not first
    assert sum(b.size_bytes for b in last) >= WORKLOAD.gradient_bytes


def test_only_schemes_around_ddp_broadcast_buffers() -> None:
    workload = load_workload("resnet50@h100-amp-b32")
    found = {
        scheme: summarise(
            simulate(workload, PLACEMENT, Options(scheme=scheme, iterations=1), warm_up=1)
        ).buffer_broadcast_s
        for scheme in ("ddp", "naive", "fsdp2", "hsdp:8", "zero1:deepspeed", "zero3")
    }
    assert {scheme for scheme, seconds in found.items() if seconds > 0} == {"ddp", "naive"}
