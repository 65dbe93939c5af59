"""An order agreed beforehand: which message goes next, were gradients ready and the wire as fast as expected."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from ddpsim.schedules.message import Message

_ROUNDING = 1e-9
"""Relative: what is ready this little after the wire is free is ready then, whatever the order of a sum."""


def urgent_first(
    messages: Sequence[Message], ready_s: Callable[[Message], float], time_s: Callable[[Message], float]
) -> list[Message]:
    """Return `messages` in the order in which one wire would take them, the most urgent of those that are ready first.

    Whenever the wire is free it takes, of the messages that are ready, the one of the lowest `priority`, and among
    those the one that was ready first; where none is ready it waits. Nothing is interrupted: to let urgent ones pass,
    cut messages into segments before. All ranks take this order, whatever comes when, so that they agree.

    Args:
        ready_s: when a message can begin, from the start of backward.
        time_s: what it takes on the wire.
    """
    coming = sorted(((ready_s(message), place) for place, message in enumerate(messages)), reverse=True)
    waiting: list[tuple[int, float, int]] = []
    order, now_s = [], 0.0
    while coming or waiting:
        if not waiting:
            now_s = max(now_s, coming[-1][0])
        while coming and coming[-1][0] <= now_s * (1 + _ROUNDING):
            ready, place = coming.pop()
            heapq.heappush(waiting, (messages[place].priority, ready, place))
        *_, place = heapq.heappop(waiting)
        order.append(messages[place])
        now_s += time_s(messages[place])
    return order
