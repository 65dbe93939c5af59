from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ddpsim.bucketing import LaunchQueue
from ddpsim.bucketing.assign import Parameter
from ddpsim.schedules.issuing import IssueQueue
from ddpsim.schedules.points import BACKWARD_END, Kind, Point, points
from ddpsim.schedules.schemes import ddp, dear, naive, priority, without_overlap, zero1
from ddpsim.schedules.setup import Setup


def setup_of(*buckets: tuple[int, ...], every: int = 1) -> Setup:
    count = sum(map(len, buckets))
    parameters = [Parameter(f"layer{index}.weight", (100 + index,)) for index in range(count)]
    return Setup(parameters=parameters, buckets=buckets, world_size=4, every=every)


@st.composite
def buckets_and_arrivals(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[int]]:
    order = draw(st.permutations(range(draw(st.integers(1, 12)))))
    cuts = sorted(draw(st.sets(st.integers(1, len(order)), max_size=4)) | {len(order)})
    buckets = [tuple(order[a:b]) for a, b in zip([0, *cuts], cuts, strict=False)]
    return buckets, draw(st.permutations(range(len(order))))


@given(buckets_and_arrivals())
def test_ddp_through_a_schedule_launches_what_the_launch_queue_does(
    case: tuple[list[tuple[int, ...]], list[int]],
) -> None:
    buckets, arrivals = case
    queue = LaunchQueue(buckets)
    issue = IssueQueue(ddp(setup_of(*buckets)))
    for _ in range(2):
        queue.reset()
        assert issue.begin() == []
        for index in arrivals:
            launched = issue.passed(Point(Kind.GRADIENT, index))
            assert [message.parameters for message in launched] == [buckets[k] for k in queue.ready(index)]
        assert issue.passed(BACKWARD_END) == []
        assert [message.parameters for message in issue.waits(BACKWARD_END)] == buckets
        assert issue.waits(BACKWARD_END) == []


def test_forward_waits_for_its_own_bucket_in_the_next_iteration() -> None:
    issue = IssueQueue(dear(setup_of((3, 2), (1, 0))))
    issue.begin()
    assert issue.waits(*points(Kind.OPTIMIZER, (0, 1, 2, 3))) == []
    assert [m.id for m in issue.passed(*points(Kind.GRADIENT, (3, 2, 1, 0)))] == ["scatter 0", "scatter 1"]
    assert [m.id for m in issue.passed(BACKWARD_END)] == ["gather 1", "gather 0"]
    issue.begin()
    assert [m.id for m in issue.waits(Point(Kind.OPTIMIZER, 1))] == ["gather 1"]
    assert [m.id for m in issue.waits(*points(Kind.OPTIMIZER, (2, 3)))] == ["gather 0"]


def test_without_overlap_nothing_is_launched_before_backward_has_ended() -> None:
    for schedule in (without_overlap(ddp(setup_of((2,), (1, 0)))), naive(setup_of((2,), (1, 0)))):
        issue = IssueQueue(schedule)
        issue.begin()
        assert issue.passed(*points(Kind.GRADIENT, (2, 1, 0))) == []
        assert issue.waits(BACKWARD_END) == []
        assert issue.passed(BACKWARD_END) == list(schedule)
        assert issue.waits(*points(Kind.OPTIMIZER, (0, 1, 2))) == list(schedule)


def test_messages_of_every_second_iteration_keep_their_order() -> None:
    issue = IssueQueue(ddp(setup_of((1,), (0,), every=2)))
    for iteration in range(1, 5):
        issue.begin()
        launched = issue.passed(*points(Kind.GRADIENT, (0, 1)))
        assert [m.id for m in launched] == (["bucket 0", "bucket 1"] if iteration % 2 == 0 else [])
        assert len(issue.waits(BACKWARD_END)) == len(launched)


def test_gradients_that_did_not_come_are_named() -> None:
    issue = IssueQueue(zero1(setup_of((2, 1), (0,))))
    issue.begin()
    issue.passed(*points(Kind.GRADIENT, (0, 2)))
    assert issue.missing() == [1]
    issue.passed(Point(Kind.GRADIENT, 1))
    assert issue.missing() == []


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
