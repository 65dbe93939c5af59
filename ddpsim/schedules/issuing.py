"""The queue of a schedule: which of its messages may be launched at a point, and for which a rank waits there."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ddpsim.bucketing import LaunchQueue
from ddpsim.schedules.points import BACKWARD_END, Point, PointKind, points
from ddpsim.schedules.schedule import Schedule

Lane = tuple[str, str]
"""A group and a stream, whose messages are launched in the order of the schedule."""


def queue_of(schedule: Schedule) -> LaunchQueue[Point]:
    """Return the queue of `schedule`, by the number of each message; the caller begins its first iteration.

    That the messages a message waits for have ended (`Message.after_messages`) is for the caller to see to, where its
    backend does not run them one after the other anyway.
    """
    return LaunchQueue(
        [message.after for message in schedule],
        lanes=[(message.group, message.stream) for message in schedule],
        every=[message.every for message in schedule],
        blocks=[message.blocks for message in schedule],
    )


def queue_of_buckets(groups: Sequence[tuple[int, ...]]) -> LaunchQueue[Point]:
    """Return the queue of DDP's buckets, each the parameters of one: that of the schedule that `schemes.ddp` makes."""
    return LaunchQueue([*map(gradients, groups)], blocks=[(BACKWARD_END,)] * len(groups))


@functools.lru_cache(maxsize=1024)  # every rank of a simulation asks for the same
def gradients(group: tuple[int, ...]) -> tuple[Point, ...]:
    """Return the points at which the gradients of `group` are ready."""
    return points(PointKind.GRADIENT, group)
