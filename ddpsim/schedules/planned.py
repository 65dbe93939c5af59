"""An order agreed beforehand: which message goes next, were gradients ready and the wire as fast as expected."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

from ddpsim.schedules.message import Message

_ROUNDING = 1e-9
"""Relative: what is ready this little after the wire is free is ready then, whatever the order of a sum."""


def urgent_first(
    messages: Sequence[Message],
    ready_s: Callable[[Message], float],
    time_s: Callable[[Message], float],
    credit_bytes: int = 0,
) -> list[Message]:
    """Return `messages` in the order in which one wire would take them, the most urgent of those that are ready first.

    Whenever the wire is free it takes, of the messages that are ready, the one of the lowest `priority`, and among
    those the one that was ready first; where none is ready it waits. Nothing is interrupted: to let urgent ones pass,
    cut messages into segments before. All ranks take this order, whatever comes when, so that they agree.

    A credit is ByteScheduler's: a message is handed over whenever bytes that are handed over and not sent leave room
    for it; the wire takes them in that order. It fills a wire that starts each message late, and lets urgent ones pass
    fewer others.

    Source: Peng et al., "A Generic Communication Scheduler for Distributed DNN Training Acceleration" (2019).

    Args:
        ready_s: when a message can begin, from the start of backward.
        time_s: what it takes on the wire.
        credit_bytes: a message that is larger goes when nothing else is under way.
    """
    coming = sorted(((ready_s(message), place) for place, message in enumerate(messages)), reverse=True)
    waiting: list[tuple[int, float, int]] = []
    under_way: deque[tuple[float, int]] = deque()
    order, now_s, free_s = [], 0.0, 0.0
    while coming or waiting:
        if not waiting:
            now_s = max(now_s, coming[-1][0])
        while coming and coming[-1][0] <= now_s * (1 + _ROUNDING):
            ready, place = coming.pop()
            heapq.heappush(waiting, (messages[place].priority, ready, place))
        while under_way and under_way[0][0] <= now_s * (1 + _ROUNDING):
            under_way.popleft()
        message = messages[waiting[0][2]]
        if under_way and sum(size for _, size in under_way) + message.size_bytes > credit_bytes:
            now_s = under_way.popleft()[0]
            continue
        heapq.heappop(waiting)
        free_s = max(free_s, now_s) + time_s(message)
        under_way.append((free_s, message.size_bytes))
        order.append(message)
    return order
