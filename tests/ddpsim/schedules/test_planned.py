"""Orders planned beforehand, held to all orders of a few messages, and ByteScheduler's credit to its two ends."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from ddpsim.common.operation import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.schemes import urgent_first


def messages_of(sizes: Sequence[int]) -> list[Message]:
    """Return messages of which the first is needed first, and comes last."""
    return [
        Message(id=str(place), op=Operation.ALLREDUCE, size_bytes=size, priority=place)
        for place, size in enumerate(sizes)
    ]


def forward_ends(order: Sequence[Message], ready: dict[str, float], layer_s: float) -> float:
    """Return when a forward ends whose layers each wait for their message, sent in `order` over one wire."""
    now, ended = 0.0, {}
    for message in order:
        now = max(now, ready[message.id]) + message.size_bytes
        ended[message.id] = now
    forward = max(ready.values())
    for place in range(len(order)):
        forward = max(forward, ended[str(place)]) + layer_s
    return forward


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_up_to_seven_equal_buckets_lets_forward_end_earlier(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 7)
    messages = messages_of([1] * count)
    ready = {str(place): (count - 1 - place) * draw.choice([0.25, 0.5, 1.0]) for place in range(count)}
    ready = dict(zip(ready, sorted(ready.values(), reverse=True), strict=True))
    layer_s = draw.choice([0.1, 0.5, 1.0])
    found = urgent_first(messages, lambda m: ready[m.id], lambda m: m.size_bytes)
    least = min(forward_ends(order, ready, layer_s) for order in itertools.permutations(messages))
    # The wire never waits for a bucket that is to come: that costs what is left of the one under way at most.
    assert least - 1e-9 <= forward_ends(found, ready, layer_s) <= least + 1


def drawn(seed: int, sizes: Sequence[int], step_s: float) -> tuple[list[Message], dict[str, float], float]:
    """Return two to seven messages, when each is ready, the last needed first as backward has it, and a layer's time.

    Moments are multiples of `step_s`.
    """
    draw = random.Random(seed)
    messages = messages_of([draw.choice(sizes) for _ in range(draw.randint(2, 7))])
    ready = sorted((draw.randint(0, 12) * step_s for _ in messages), reverse=True)
    return messages, {str(place): at for place, at in enumerate(ready)}, draw.choice([0.25, 0.5, 1.0, 2.0])


@pytest.mark.parametrize("seed", range(20))
def test_of_buckets_as_long_as_the_grid_of_moments_no_order_is_better(seed: int) -> None:
    # Then nothing is under way when a bucket comes, so that the most urgent first is the best of all orders.
    messages, ready, layer_s = drawn(seed, [1], 1.0)
    planned = urgent_first(messages, lambda m: ready[m.id], lambda m: m.size_bytes)
    least = min(forward_ends(order, ready, layer_s) for order in itertools.permutations(messages))
    assert forward_ends(planned, ready, layer_s) == pytest.approx(least, abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_planned_orders_of_unequal_buckets_are_behind_the_best_by_what_is_under_way(seed: int) -> None:
    messages, ready, layer_s = drawn(seed, [1, 2, 3, 5], 0.5)
    largest = max(message.size_bytes for message in messages)
    least = min(forward_ends(order, ready, layer_s) for order in itertools.permutations(messages))

    def behind(credit: int) -> float:
        order = urgent_first(messages, lambda m: ready[m.id], lambda m: m.size_bytes, credit)
        return forward_ends(order, ready, layer_s) - least

    # An urgent bucket waits for one that is sent, and with credit for as much as is handed over before it.
    assert -1e-9 <= behind(1) <= largest
    for credit in (4, 8, 16):
        assert -1e-9 <= behind(credit) <= max(credit, largest)


@pytest.mark.parametrize("seed", range(10))
def test_a_credit_of_one_message_is_none_and_an_endless_one_takes_what_is_ready(seed: int) -> None:
    draw = random.Random(seed)
    messages = messages_of([draw.randint(1, 5) for _ in range(8)])
    ready = {message.id: draw.uniform(0, 10) for message in messages}

    def order(credit: int) -> list[str]:
        return [m.id for m in urgent_first(messages, lambda m: ready[m.id], lambda m: m.size_bytes, credit)]

    assert order(1) == order(0)
    assert order(1000) == sorted(ready, key=lambda name: ready[name])


def test_credit_in_between_lets_urgent_ones_pass_what_is_not_handed_over() -> None:
    # All but the first are ready at once; it comes while the second of five seconds each is sent.
    messages = messages_of([5, 5, 5, 5])
    ready = {"0": 1.0, "1": 0.0, "2": 0.0, "3": 0.0}

    def order(credit: int) -> str:
        return "".join(m.id for m in urgent_first(messages, lambda m: ready[m.id], lambda m: m.size_bytes, credit))

    assert (order(5), order(10), order(15)) == ("1023", "1203", "1230")
