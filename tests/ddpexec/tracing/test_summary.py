from __future__ import annotations

import itertools
from typing import Any

import pytest

pytest.importorskip("torch")

from ddpexec.tracing.summary import Watcher, describe_interval, find_late_ranks, overlap
from ddpsim.trace.records import BucketTimes, Iteration


def bucket(index: int, start: float, end: float) -> BucketTimes:
    return BucketTimes(
        index=index, size_bytes=4, parameters=(index,), ready_s=start, launched_s=start, started_s=start, wire_s=None,
        finished_s=end, written_s=end,
    )  # fmt: skip


def iteration(own_s: float = 0.09, exposed_s: float = 0.01, forward_s: float = 0.03) -> Iteration:
    return Iteration(
        rank=0, index=0, start_s=0.0, end_s=own_s + exposed_s, forward_s=forward_s, backward_compute_s=0.05,
        exposed_comm_s=exposed_s, buffer_broadcast_s=0.0, optimizer_s=0.005,
        buckets=(bucket(0, 0.04, 0.06), bucket(1, 0.05, 0.08)),
    )  # fmt: skip


def words(step_s: float = 0.1, **iterations: float) -> dict[str, Any]:
    return describe_interval(0, 0, 4, [step_s] * 4, [iteration(**iterations)] * 4)


def test_overlap_is_the_share_of_communication_that_is_not_waited_for() -> None:
    assert overlap(iteration(exposed_s=0.01)) == pytest.approx(1 - 0.01 / 0.04)


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_others_wait_for_is_named_with_its_phase(rank: int, phase: str) -> None:
    everybody = {each: words(own_s=0.09, exposed_s=0.01) for each in range(4)}
    everybody[rank] = words(own_s=0.097, exposed_s=0.003)
    everybody[rank]["forward_s" if phase == "forward" else "backward_compute_s"] += 0.007
    late = find_late_ranks(everybody)
    assert list(late) == [rank]
    assert f"rank {rank} is late by 7 ms of a step of 100 ms, most in {phase} (7 ms longer)" == late[rank]


def test_a_slow_link_makes_no_rank_late() -> None:
    assert find_late_ranks({rank: words(own_s=0.09, exposed_s=0.06) for rank in range(4)}) == {}


def test_ranks_that_differ_from_step_to_step_are_not_late() -> None:
    everybody = {rank: words(own_s=0.09) for rank in range(2)}
    everybody[1] |= {"own_s": 0.095, "own_error_s": 0.002}
    assert find_late_ranks(everybody) == {}
    everybody[1]["own_error_s"] = 0.001
    assert list(find_late_ranks(everybody)) == [1]


def test_what_became_worse_is_told_once_and_once_that_it_is_over() -> None:
    watcher, times = Watcher(), (0.1, 0.104, 0.106, 0.12, 0.1)
    told = [watcher.events(words(step_s), {}, 0) for step_s in times]
    assert told == [[], [], ["the step grew 6.0%: 106 ms, at first 100 ms"], [], ["the step is as it was at first"]]


def test_overlap_that_falls_is_told() -> None:
    watcher, exposed = Watcher(), (0.01, 0.011, 0.02)
    told = itertools.chain(*(watcher.events(words(exposed_s=each), {}, 0) for each in exposed))
    assert list(told) == ["overlap fell to 50% of communication, at first 75%"]


def test_a_late_rank_is_told_of_by_who_has_heard_it() -> None:
    watcher = Watcher()
    late = words(own_s=0.099, exposed_s=0.001, forward_s=0.039)
    others = {1: words(), 2: late}
    assert watcher.events(words(), others, 0) == [
        "rank 2 is late by 9 ms of a step of 100 ms, most in forward (9 ms longer)"
    ]
    assert watcher.events(words(), others, 0) == []
    assert watcher.events(words(), {1: words(), 2: words()}, 0) == ["rank 2 is late no more"]


def test_an_interval_without_stamped_steps_tells_of_the_step_alone() -> None:
    told = describe_interval(1, 4, 4, [0.1, 0.2, 0.3], [])
    assert (told["step_s"], told["own_s"], told["overlap_ratio"]) == (0.2, None, None)
    assert find_late_ranks({0: told, 1: words()}) == {}
