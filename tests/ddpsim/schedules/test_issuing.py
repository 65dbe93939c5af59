from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing import LaunchQueue
from ddpsim.bucketing.assign import Parameter
from ddpsim.schedules.points import BACKWARD_END, Point, PointKind, points
from ddpsim.schedules.schedule import Schedule, queue_of, queue_of_buckets
from ddpsim.schedules.schemes import ddp, dear, naive, priority, without_overlap
from ddpsim.schedules.setup import SchemeInputs


def setup_of(*buckets: tuple[int, ...], every: int = 1) -> SchemeInputs:
    count = sum(map(len, buckets))
    parameters = [Parameter(f"layer{index}.weight", (100 + index,)) for index in range(count)]
    return SchemeInputs(parameters=parameters, buckets=buckets, world_size=4, every=every)


@st.composite
def buckets_and_arrivals(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[int]]:
    order = draw(st.permutations(range(draw(st.integers(1, 12)))))
    cuts = sorted(draw(st.sets(st.integers(1, len(order)), max_size=4)) | {len(order)})
    buckets = [tuple(order[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)]
    return buckets, draw(st.permutations(range(len(order))))


def named(schedule: Schedule, numbers: list[int]) -> list[str]:
    return [schedule.messages[number].id for number in numbers]


@given(buckets_and_arrivals())
def test_buckets_are_launched_as_the_schedule_of_ddp_is(case: tuple[list[tuple[int, ...]], list[int]]) -> None:
    buckets, arrivals = case
    plain, of_points, of_schedule = LaunchQueue(buckets), queue_of_buckets(buckets), queue_of(ddp(setup_of(*buckets)))
    for _ in range(2):
        plain.reset()
        assert of_points.begin() == of_schedule.begin() == []
        for index in arrivals:
            point = Point(PointKind.GRADIENT, index)
            assert plain.mark_ready(index) == of_points.mark_ready(point) == of_schedule.mark_passed(point)
        for queue in (of_points, of_schedule):
            assert queue.mark_passed(BACKWARD_END) == []
            assert queue.launched_all
            assert queue.take_waits(BACKWARD_END) == list(range(len(buckets)))
            assert queue.take_waits(BACKWARD_END) == []


def test_forward_waits_for_its_own_bucket_in_the_next_iteration() -> None:
    schedule = dear(setup_of((3, 2), (1, 0)))
    queue = queue_of(schedule)
    queue.begin()
    assert queue.take_waits(*points(PointKind.OPTIMIZER, (0, 1, 2, 3))) == []
    assert named(schedule, queue.mark_passed(*points(PointKind.GRADIENT, (3, 2, 1, 0)))) == ["scatter 0", "scatter 1"]
    assert named(schedule, queue.mark_passed(BACKWARD_END)) == ["gather 1", "gather 0"]
    queue.begin()
    assert named(schedule, queue.take_waits(Point(PointKind.OPTIMIZER, 1))) == ["gather 1"]
    assert named(schedule, queue.take_waits(*points(PointKind.OPTIMIZER, (2, 3)))) == ["gather 0"]


def test_without_overlap_nothing_is_launched_before_backward_has_ended() -> None:
    for schedule in (without_overlap(ddp(setup_of((2,), (1, 0)))), naive(setup_of((2,), (1, 0)))):
        queue = queue_of(schedule)
        queue.begin()
        assert queue.mark_passed(*points(PointKind.GRADIENT, (2, 1, 0))) == []
        assert queue.take_waits(BACKWARD_END) == []
        assert queue.mark_passed(BACKWARD_END) == list(range(len(schedule)))
        assert queue.take_waits(*points(PointKind.OPTIMIZER, (0, 1, 2))) == list(range(len(schedule)))


def test_messages_of_every_second_iteration_keep_their_order() -> None:
    queue = queue_of(ddp(setup_of((1,), (0,), every=2)))
    for iteration in range(1, 5):
        queue.begin()
        launched = queue.mark_passed(*points(PointKind.GRADIENT, (0, 1)))
        assert launched == ([0, 1] if iteration % 2 == 0 else [])
        assert queue.take_waits(BACKWARD_END) == launched


def test_gradients_that_did_not_come_are_named() -> None:
    queue = queue_of(without_overlap(ddp(setup_of((2, 1), (0,)))))
    queue.begin()
    queue.mark_passed(*points(PointKind.GRADIENT, (0, 2)), BACKWARD_END)
    assert queue.find_missing() == [Point(PointKind.GRADIENT, 1)]
    queue.mark_passed(Point(PointKind.GRADIENT, 1))
    assert queue.find_missing() == []


def test_urgent_buckets_pass_those_that_wait_for_the_wire() -> None:
    setup = replace(
        setup_of((3,), (2,), (1,), (0,)),
        ready_s={3: 1.0, 2: 2.0, 1: 3.0, 0: 4.0},
        use_s={0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0},
        time_s=lambda operation, size_bytes: 2.5,
    )
    assert [message.parameters for message in priority(setup)] == [(3,), (1,), (0,), (2,)]
    pieces = priority(replace(setup, time_s=lambda operation, size_bytes: size_bytes / 100), segment_bytes=208)
    assert [piece.id for piece in pieces][:2] == ["bucket 0/0", "bucket 2/0"]
