"""What a traced step is bound by: the wait for a rank is told from the communication of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ddpsim.explaining.bound import NEAR, StepShares, describe_binding, shares_of
from ddpsim.explaining.late import late_rank
from ddpsim.explaining.ranks import TracedRank
from tests.ddpsim.explaining.seen_ranks import HOST, STEP_S, ranks

WIRE_S = 0.010


def exposing(seen: Sequence[TracedRank]) -> list[TracedRank]:
    """Return ranks that do nothing else while their collective is under way, and that have no time left."""
    found = []
    for rank in seen:
        steps = []
        for step in rank.iterations:
            [sent] = step.collectives
            exposed_s = sent.finished_s - sent.started_s
            steps.append(replace(step, exposed_comm_s=exposed_s, forward_s=step.iteration_s - exposed_s))
        found.append(replace(rank, iterations=tuple(steps)))
    return found


def shares(seen: Sequence[TracedRank]) -> StepShares:
    return shares_of(seen[0], seen, late_rank(seen))


@pytest.mark.parametrize("late_s", [0.012, 0.05, 0.3])
def test_what_is_waited_for_a_rank_is_apart_from_the_wire(late_s: float) -> None:
    found = shares(exposing(ranks(late={2: {"backward": late_s}}, wire_s=WIRE_S)))
    assert found.waiting_s == pytest.approx(late_s)
    assert found.communication_s == pytest.approx(late_s + WIRE_S)
    assert found.waits_for == 2


def test_a_wait_that_is_the_most_of_a_step_binds_it_with_the_rank_named() -> None:
    found = shares(exposing(ranks(late={2: {"backward": 0.3}})))
    assert found.bounds == ["rank"]
    assert describe_binding(found.bounds, found.waits_for) == "waiting for rank 2"


def test_a_long_wire_is_communication() -> None:
    found = shares(exposing(ranks(wire_s=0.4)))
    assert found.bounds == ["communication"]
    assert found.waiting_s == pytest.approx(0.0, abs=1e-9)


def test_whose_trace_comes_first_changes_nothing() -> None:
    """Rank 0 itself is late: it waits for nobody, and all others wait for it."""
    found = shares(exposing(ranks(late={0: {"backward": 0.3}})))
    assert found.bounds == ["rank"]
    assert found.waiting_s == pytest.approx(0.0, abs=1e-9)


def test_one_rank_alone_waits_for_nobody_known() -> None:
    [one] = exposing(ranks(count=1, wire_s=0.4))
    found = shares_of(one, [one])
    assert (found.bounds, found.waits_for) == (["communication"], None)


def test_ranks_that_take_turns_are_not_named() -> None:
    seen = exposing(ranks(late={1: {"backward": 0.3}}))
    other = exposing(ranks(late={3: {"backward": 0.3}}))
    mixed = [
        replace(
            rank,
            iterations=tuple(
                (a, b)[n % 2] for n, (a, b) in enumerate(zip(rank.iterations, late.iterations, strict=True))
            ),
        )
        for rank, late in zip(seen, other, strict=True)
    ]
    found = shares_of(mixed[0], mixed)
    assert (found.bounds, found.waits_for) == (["rank"], None)
    assert describe_binding(found.bounds, None) == "waiting for ranks"


def test_loading_that_takes_most_is_input() -> None:
    def loads(rank: TracedRank) -> TracedRank:
        host = {**dict.fromkeys(HOST, 0.002), "input": 0.09}
        loading = {"input_s": 0.09, "forward_s": STEP_S - 0.09, "host_s": host}
        return replace(rank, iterations=tuple(replace(step, **loading) for step in rank.iterations))

    seen = list(map(loads, ranks()))
    assert shares(seen).bounds == ["input"]


@pytest.mark.parametrize("second", [NEAR + 0.01, NEAR - 0.01])
def test_the_second_is_named_where_it_is_near_the_first(second: float) -> None:
    found = StepShares(device_s=1.0, communication_s=second, host_s=0.1)
    assert found.bounds == (["device", "communication"] if second > NEAR else ["device"])
