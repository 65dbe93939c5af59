"""`fully_shard` over gloo: the host waits for each collective where it launches it, as torch's does."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from ddpsim.bucketing import Parameter
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.operation import Operation
from ddpsim.schedules.schedule import message_document
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import Simulated, simulate
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from ddpsim.workload import Workload
from ddpsim.workload.profile import ForwardUse
from ddpsim.workload.replayed import single_clock
from tests.ddpsim.simulation.builders import wire_s, workload

GLOO = Options(backend="gloo", scheme="fsdp2")
PAIR = load_topology("loopback").place(1, 2)


def blocks(source: Workload, root: int = 1) -> Workload:
    """Return a workload whose first `root` parameters lie in no block, and each other one in one of its own."""
    parameters = (
        Parameter(f"words{i}.weight" if i < root else f"h.{i}.weight", p.shape) for i, p in enumerate(source.parameters)
    )
    places = 0.03 * (source.gradient_ready_s[0][::-1] - source.gradient_ready_s[0].min())
    return replace(source, parameters=tuple(parameters), forward_use_s=ForwardUse(places, places))


def own_s(found: Simulated, source: Workload) -> float:
    """Return what all messages take on the wire, and the host with them: launches, copies in and out, ends."""
    costs, total = Costs.of("gloo", None), 0.0
    assert found.schedule is not None
    for message in found.schedule:
        copied = costs.copies_s(len(message.parameters), message.size_bytes)
        copies = 1.5 * copied if message.op is Operation.ALL_GATHER else copied
        total += wire_s(PAIR, message.size_bytes, message.op) + copies + costs.launch_s + costs.finish_s
    return total + costs.forward_s


@pytest.mark.parametrize("scheme", ["fsdp2", "fsdp2:noreshard", "fsdp2:reshard_root"])
@pytest.mark.parametrize("root", [0, 1, 2])
def test_a_step_is_its_computation_and_then_every_message(scheme: str, root: int) -> None:
    source = blocks(workload(), root)
    found = simulate(source, PAIR, replace(GLOO, scheme=scheme))
    # Half of the optimizer's time: a rank updates its half of the parameters.
    assert summarise(found).iteration_s == pytest.approx(0.03 + 0.08 + 0.005 + own_s(found, source), rel=1e-9)


def test_what_fully_shard_itself_takes_is_counted_once_a_collective() -> None:
    source = blocks(workload())
    measured = Calibration.priors("gloo").with_values({"gloo.ddp.unit_s": 1e-3}, source="test")
    found, free = (simulate(source, PAIR, GLOO, each) for each in (measured, None))
    assert found.schedule is not None
    longer_s = summarise(found).iteration_s - summarise(free).iteration_s
    costs = Costs.of("gloo", None)
    assert longer_s == pytest.approx(len(found.schedule) * (1e-3 - costs.launch_s - costs.finish_s))


def test_layers_that_sleep_do_so_when_the_wait_is_over() -> None:
    source = single_clock(blocks(workload(device="V100")))
    found = simulate(source, PAIR, GLOO)
    backward_s = float(source.backward.device_s[0])
    assert summarise(found).iteration_s == pytest.approx(0.03 + backward_s + 0.005 + own_s(found, source), rel=1e-9)


@pytest.mark.parametrize("device", ["cpu", "V100"])
def test_no_two_messages_are_in_flight(device: str) -> None:
    found = simulate(blocks(workload(device=device)), PAIR, GLOO)
    for iteration in found.of_rank(0):
        messages = sorted(iteration.buckets, key=lambda bucket: bucket.launched_s)
        assert len(messages) == 3 * 8 - 1
        assert all(one.finished_s <= other.launched_s for one, other in pairwise(messages))


def test_a_schedule_over_nccl_waits_for_none() -> None:
    placement = load_topology("dgx-1v").place(1, 8)
    found = simulate(blocks(workload(device="V100")), placement, replace(GLOO, backend="nccl"))
    assert found.schedule is not None
    assert not any("blocking" in message_document(message) for message in found.schedule)
