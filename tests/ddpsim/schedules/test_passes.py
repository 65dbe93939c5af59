"""What the ranks of a pipeline compute, wait for and send: every message has two ends, and none is left behind."""

from __future__ import annotations

from collections import Counter

import pytest

from ddpsim.schedules.pipeline import passes_of, works_of
from ddpsim.schedules.schedule import WHOLE_PASSES

CASES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)]


@pytest.mark.parametrize(("order", "per_rank"), CASES)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (4, 8), (3, 3)])
def test_what_a_rank_sends_another_receives_in_the_same_order(order, per_rank, ranks, micro_batches):
    works = works_of(order, ranks, micro_batches, per_rank)
    passes = [passes_of(order, works, place, 64) for place in range(ranks)]
    sent, received = {}, {}
    for of_rank in passes:
        for each in of_rank:
            if each.sends is not None:
                sent.setdefault(each.sends, []).append((each.kind, each.number))
            if each.receives is not None:
                received.setdefault(each.receives, []).append((each.kind, each.number))
    assert sent == received
    # Between neighbours of so many stages, there and back.
    assert len(sent) == 2 * (ranks * per_rank - 1)
    assert all(len(numbers) == micro_batches for numbers in sent.values())


@pytest.mark.parametrize(("order", "per_rank"), CASES)
def test_gradients_of_each_stage_are_whole_behind_one_backward(order, per_rank):
    works = works_of(order, 4, 8, per_rank)
    for place in range(4):
        passes = passes_of(order, works, place, 0)
        last = Counter((each.kind, each.stage) for each in passes if each.last)
        assert set(last.values()) == {1}
        assert {stage for _, stage in last} == {place + 4 * held for held in range(per_rank)}


@pytest.mark.parametrize(("order", "left"), [("gpipe", 0), ("1f1b", 0), ("interleaved", 24)])
def test_nobody_awaits_what_interleaved_stages_send_and_others_end_a_step_with_nothing_under_way(order, left):
    under_way = 0
    for each in passes_of(order, works_of(order, 4, 8, 2 if order == "interleaved" else 1), 0, 0):
        under_way *= "computed" not in each.settles and not (each.receives and "received" in each.settles)
        under_way += each.sends is not None
        under_way *= "sent" not in each.settles
    # Of two stages rank 0 sends the forwards of eight micro-batches, and of the second the backwards too.
    assert under_way == left


def test_one_stage_is_a_forward_and_a_backward():
    assert [passes_of(order, works_of(order, 1, 1), 0, 0)[0].kind for order in ("gpipe", "1f1b")] == ["forward"] * 2
    [forward, backward] = passes_of("gpipe", works_of("gpipe", 1, 1), 0, 0)
    assert [(each.kind, each.receives, each.sends, each.last) for each in WHOLE_PASSES] == [
        (each.kind, each.receives, each.sends, each.last) for each in (forward, backward)
    ]
