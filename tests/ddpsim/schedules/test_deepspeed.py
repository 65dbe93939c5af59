from __future__ import annotations

import itertools

import pytest

from ddpsim.bucketing.assign import Parameter
from ddpsim.common.operation import Operation
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.points import BACKWARD_END, Point, PointKind
from ddpsim.schedules.setup import SchemeInputs

LAYERS, WORLD = 6, 4


def setup(numel: int = 100, dtype: str = "bfloat16") -> SchemeInputs:
    parameters = [
        Parameter(f"h.{n}.{part}", shape, dtype)
        for n in range(LAYERS)
        for part, shape in (("w", (numel,)), ("b", (4,)))
    ]
    return SchemeInputs(parameters=parameters, buckets=[tuple(reversed(range(2 * LAYERS)))], world_size=WORLD)


def test_a_bucket_leaves_when_a_gradient_comes_that_it_has_no_room_for() -> None:
    job = setup()
    schedule = scheme_named("zero2:deepspeed,reduce_bucket_size=210").schedule(job)
    reductions = [m for m in schedule if m.op.reduces]
    assert [m.op for m in reductions] == [Operation.ALLREDUCE] * 3
    assert [len(m.parameters) for m in reductions] == [4, 4, 4]
    for message, following in itertools.pairwise(reductions):
        assert sum(job.parameters[i].numel for i in message.parameters) <= 210
        assert Point(PointKind.GRADIENT, following.parameters[0]) in message.after
    assert all(BACKWARD_END in message.blocks for message in reductions)


def test_stages_1_and_2_send_the_same_and_without_zero_all_is_sent_after_backward() -> None:
    one, two = (scheme_named(f"{name}:deepspeed").schedule(setup()) for name in ("zero1", "zero2"))
    assert one.messages == two.messages
    assert all(BACKWARD_END in m.after for m in scheme_named("zero0").schedule(setup()))


def test_parameters_are_gathered_whole_after_the_step_in_pieces_of_the_bucket() -> None:
    job = setup()
    total = job.size_bytes(range(2 * LAYERS))
    for size, pieces in ((5e8, 1), (300, 2), (210, 2), (100, 6)):
        schedule = scheme_named(f"zero1:deepspeed,allgather_bucket_size={size:g}").schedule(job)
        gathers = [m for m in schedule if m.op is Operation.ALL_GATHER]
        assert len(gathers) == pieces
        assert sum(m.size_bytes for m in gathers) == total
        assert all(point.kind is PointKind.UPDATED for m in gathers for point in m.after)


def test_reduced_in_another_dtype_gradients_weigh_what_they_do_there() -> None:
    wide, own = (scheme_named(f"zero3{text}").schedule(setup()) for text in (":reduce=fp32", ""))
    assert sum(m.size_bytes for m in wide if m.op.reduces) == 2 * sum(m.size_bytes for m in own if m.op.reduces)


def gathered(text: str) -> list[tuple[PointKind, tuple[int, ...]]]:
    """What is gathered before which phase, small parameters left out."""
    schedule = scheme_named(f"zero3:param_persistence_threshold=4,{text}").schedule(setup())
    return [
        (m.blocks[0].kind, m.parameters) for m in schedule if m.op is Operation.ALL_GATHER and m.id != "gather small"
    ]


def test_all_is_gathered_once_where_it_may_be_kept() -> None:
    found = gathered("prefetch_bucket_size=150")
    assert all(kind is PointKind.FORWARD for kind, _ in found)
    assert sorted(index for _, each in found for index in each) == list(range(0, 2 * LAYERS, 2))


def test_a_module_prefetches_until_the_bucket_is_full_and_the_next_waits_for_it() -> None:
    found = gathered("prefetch_bucket_size=150")
    assert [each for _, each in found] == [(0,), (2, 4), (6, 8), (10,)]
    schedule = scheme_named("zero3:param_persistence_threshold=4,prefetch_bucket_size=150").schedule(setup())
    prefetches = [m for m in schedule if m.id.startswith("prefetch")]
    assert [m.after for m in prefetches] == [(), (), (Point(PointKind.FORWARD, 0),)], "two modules ahead of the device"
    assert [Point(PointKind.FORWARD, 2 * n + 2) in m.blocks for n, m in enumerate(prefetches)] == [True] * 3


def test_what_is_not_used_again_soon_is_given_up_and_gathered_again() -> None:
    found = gathered("prefetch_bucket_size=1,max_reuse_distance=1,max_live_parameters=300")
    again = [index for kind, each in found if kind is PointKind.BACKWARD for index in each]
    assert again == list(range(2 * LAYERS - 4, -1, -2)), "all but the last, which backward needs next"


def test_small_parameters_are_gathered_after_the_step_alone() -> None:
    schedule = scheme_named("zero3:param_persistence_threshold=4").schedule(setup())
    small = next(m for m in schedule if m.id == "gather small")
    assert small.parameters == tuple(range(1, 2 * LAYERS, 2))
    assert all(point.kind is PointKind.UPDATED for point in small.after)


@pytest.mark.parametrize("name", ["zero0", "zero1:deepspeed", "zero2:deepspeed", "zero3"])
def test_each_gradient_is_summed_once(name: str) -> None:
    schedule = scheme_named(name).schedule(setup())
    assert sorted(index for m in schedule if m.op.reduces for index in m.parameters) == list(range(2 * LAYERS))
