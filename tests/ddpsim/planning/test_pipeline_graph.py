"""The graph of a pipeline, held to closed forms and to the recursion over what each work waits for."""

from __future__ import annotations

import random

import pytest
import simpy

from ddpsim.collectives.execute import find_rank_paths, make_transport
from ddpsim.collectives.groups import part_of
from ddpsim.network.fluid import Network
from ddpsim.operations import Operation
from ddpsim.planning.pipeline_graph import GradientBucket, PipelineLinks, PipelinePlan, PipelineTimes, simulate_pipeline
from ddpsim.schedules.pipeline import Order, find_end_times, works_of
from ddpsim.schedules.sharded import REPLICA
from ddpsim.topology.graph import Placement
from ddpsim.topology.spec import load_topology

MACHINE = load_topology("dgx-a100")
MiB = 1 << 20


def _simulated(plan: PipelinePlan, placement: Placement, ranks: int) -> PipelineTimes:
    copies = placement.world_size // ranks
    part, together = part_of(placement, REPLICA, copies)
    ways, data = find_rank_paths(placement, "nccl", None), make_transport(part, "nccl")
    ends = [(k % ranks, (k + 1) % ranks) for k in range(plan.stages - 1)]
    pairs = [(ways.connection(one, other), ways.connection(other, one)) for one, other in ends]

    def links(env: simpy.Environment) -> PipelineLinks:
        sum_s = lambda size_bytes: data.time_s(Operation.ALLREDUCE, together * size_bytes)  # noqa: E731
        return PipelineLinks(Network(env, ways.capacities), pairs, sum_s)

    return simulate_pipeline(plan, links)


def _sent_s(placement: Placement, one: int, other: int, size_bytes: int) -> float:
    ways = find_rank_paths(placement, "nccl", None)
    way = ways.connection(one, other)
    return way.latency_s + size_bytes * max((load / ways.capacities[k] for k, load in way.loads.items()), default=0.0)


@pytest.mark.parametrize("order", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 1), (4, 4), (8, 3)])
def test_equal_stages_take_the_closed_form_and_what_is_sent_along_the_way(
    order: Order, stages: int, micro_batches: int
) -> None:
    placement, forward, backward = MACHINE.place(1, stages), 1.0, 2.0
    works = works_of(order, stages, micro_batches)
    plan = PipelinePlan(works, [forward] * stages, [backward] * stages, 0)
    latencies = sum(_sent_s(placement, k, k + 1, 0) for k in range(stages - 1))
    times = _simulated(plan, placement, stages)
    expected = (micro_batches + stages - 1) * (forward + backward)
    assert max(times.computed_s) == pytest.approx(expected, abs=2 * micro_batches * latencies + 1e-9)
    assert times.summed_s == times.computed_s


@pytest.mark.parametrize(("order", "per_rank"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)])
def test_any_stages_end_when_the_recursion_says(order: Order, per_rank: int) -> None:
    draw, placement = random.Random(7), MACHINE.place(4, 1)
    for _ in range(5):
        count = 4 * per_rank
        forward, backward = ([draw.uniform(0.5, 2) for _ in range(count)] for _ in range(2))
        works = works_of(order, 4, 8, per_rank)
        sent = [_sent_s(placement, k % 4, (k + 1) % 4, 8 * MiB) for k in range(count - 1)]
        found = _simulated(PipelinePlan(works, forward, backward, 8 * MiB), placement, 4)
        assert found.computed_s == pytest.approx(find_end_times(works, forward, backward, sent), rel=1e-9)


def _plan(*, under_backward: bool, boundary_bytes: int = 0, buckets: int = 4) -> PipelinePlan:
    stages, backward_s = 2, 0.08
    own = [GradientBucket(backward_s * (k + 1) / buckets, 100 * MiB // buckets) for k in range(buckets)]
    works = works_of("gpipe", stages, 4)
    return PipelinePlan(works, [0.04] * stages, [backward_s] * stages, boundary_bytes, [own] * stages, under_backward)


def test_copies_sum_a_stage_under_its_last_backward_while_another_still_computes() -> None:
    placement = MACHINE.place(4, 1)
    part, together = part_of(placement, REPLICA, 2)
    transport = make_transport(part, "nccl")
    whole_s, last_s = (transport.time_s(Operation.ALLREDUCE, together * size * MiB) for size in (100, 25))
    after, under = (_simulated(_plan(under_backward=each), placement, 2) for each in (False, True))
    assert after.computed_s == pytest.approx(under.computed_s)
    for times, waits_s in ((after, whole_s), (under, last_s)):
        assert [end - done for end, done in zip(times.summed_s, times.computed_s, strict=True)] == pytest.approx(
            [waits_s, waits_s], rel=1e-3
        )
    # The last stage has summed all before the first one has computed its last backward.
    assert under.summed_s[1] < under.computed_s[0]


def test_one_bucket_that_is_ready_last_is_as_all_after_the_step() -> None:
    placement = MACHINE.place(4, 1)
    after, under = (_simulated(_plan(under_backward=each, buckets=1), placement, 2) for each in (False, True))
    assert after.summed_s == pytest.approx(under.summed_s)


def test_messages_of_several_stages_share_a_card() -> None:
    # Two stages a rank, on two nodes: the first and the third send over the same card, at once.
    works, placement = works_of("interleaved", 2, 4, 2), MACHINE.place(2, 1)
    plan = PipelinePlan(works, [0.001] * 4, [0.001] * 4, 512 * MiB)
    sent = [_sent_s(placement, k % 2, (k + 1) % 2, 512 * MiB) for k in range(3)]
    apart = max(find_end_times(works, [0.001] * 4, [0.001] * 4, sent))
    assert max(_simulated(plan, placement, 2).computed_s) > 1.05 * apart


def test_slow_cards_slow_what_crosses_nodes_alone() -> None:
    slow = load_topology("dgx-a100").place(2, 2)
    plan = _plan(under_backward=False, boundary_bytes=64 * MiB)
    inside = _simulated(plan, slow, 2)
    across = _simulated(plan, MACHINE.place(4, 1), 2)
    assert max(inside.computed_s) < max(across.computed_s)
