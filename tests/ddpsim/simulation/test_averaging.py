"""Schemes that average parameters, held to closed forms of one link."""

from __future__ import annotations

from typing import Any

import pytest

from ddpsim.bucketing import BucketCaps
from ddpsim.collectives.execute import Collectives
from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.prediction.predict import predict
from ddpsim.schedules.named import schemes_named
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.placement import Placement
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from tests.ddpsim.simulation.builders import ALIKE, place, workload

ONE = BucketCaps(bucket_cap_mb=100)


def period(scheme: str, placement: Placement, source: Any = None, **options: Any) -> float:
    source = source or workload()
    given = Options(**{"caps": ONE, "backend": "gloo", "scheme": scheme, **options})
    return summarise(simulate(source, placement, given)).iteration_s


@pytest.mark.parametrize("steps", [1, 3, 8])
def test_an_average_costs_a_kth_of_one_allreduce_of_the_parameters(steps: int) -> None:
    source, placement, costs = workload(), place(), Costs.of("gloo", None)
    size = source.gradient_bytes
    wire_s = Collectives(None, placement, backend="gloo").estimate_s(size, Operation.ALLREDUCE)
    # Parameters lie in their buffer: dividing them by the ranks is the one pass over them.
    average_s = costs.copies_s(8, size) + costs.launch_s + wire_s + costs.finish_s
    expected = 0.12 + costs.forward_s + average_s / steps
    assert period(f"averaging:{steps}", placement, source) == pytest.approx(expected, rel=1e-9)


def test_slowmo_adds_its_outer_step() -> None:
    source, costs = workload(), Costs.of("gloo", None)
    outer_s = 6.5 * costs.copies_s(8, source.gradient_bytes)
    plain, moved = (period(scheme, place(), source) for scheme in ("averaging:4", "slowmo:4"))
    assert moved - plain == pytest.approx(outer_s / 4, rel=1e-9)


def test_local_sgd_of_one_rank_a_node_is_averaging_and_of_one_node_ddp_with_averages() -> None:
    source = workload(device="V100")
    lone = load_topology("dgx-1v").place(4, 1)
    found = [summarise(simulate(source, lone, Options(caps=ONE, scheme=name, broadcast_buffers=False), ALIKE))
             for name in ("local-sgd:4", "averaging:4")]  # fmt: skip
    assert found[0].iteration_s == found[1].iteration_s
    node = load_topology("dgx-1v").place(2, 8)
    rare, often, ddp = (
        summarise(simulate(source, node, Options(caps=ONE, scheme=name), ALIKE)).iteration_s
        for name in ("local-sgd:64", "local-sgd:1", "ddp")
    )
    assert rare < ddp < often


def test_accumulated_micro_batches_are_counted_in_steps() -> None:
    source, placement = workload(), place()
    once, twice = (
        summarise(simulate(source, placement, Options(backend="gloo", caps=ONE, scheme="averaging:2", accumulate=n)))
        for n in (1, 2)
    )
    costs = Costs.of("gloo", None)
    wire_s = Collectives(None, placement, backend="gloo").estimate_s(source.gradient_bytes)
    average_s = costs.copies_s(8, source.gradient_bytes) + costs.launch_s + wire_s + costs.finish_s
    added_s = sum(costs.copies_s(1, parameter.size_bytes) for parameter in source.parameters)
    assert once.iteration_s == pytest.approx(0.12 + costs.forward_s + average_s / 2, rel=1e-9)
    assert 2 * twice.iteration_s == pytest.approx(0.23 + 2 * costs.forward_s + added_s + average_s / 2, rel=1e-9)


def test_memory_has_no_buckets_and_slowmo_two_copies_more() -> None:
    source, machine = workload(device="V100"), load_topology("dgx-1v")
    size = source.gradient_bytes

    def memory(scheme: str) -> Any:
        return predict(Job(source, machine, options=Options(scheme=scheme)), band=False).memory

    assert memory("averaging:4").buckets_bytes == 0
    assert memory("slowmo:4").resident_bytes - memory("averaging:4").resident_bytes == 2 * size
    assert memory("local-sgd:4").buckets_bytes == memory("ddp").buckets_bytes > 0


def test_a_list_of_schemes_keeps_options_with_theirs() -> None:
    assert schemes_named("ddp,slowmo:8,momentum=0.4,rate=1,averaging:2") == [
        "ddp", "slowmo:8,momentum=0.4,rate=1", "averaging:2",
    ]  # fmt: skip


def test_groups_that_do_not_divide_the_ranks_are_refused() -> None:
    with pytest.raises(PlanError, match="groups of 3 ranks"):
        period("local-sgd:2,ranks=3", place())
