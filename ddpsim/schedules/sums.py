"""Sums of gradients, of which most schemes are made: a message a group, which can begin when all of it is there."""

from __future__ import annotations

from collections.abc import Iterable

from ddpsim.operations import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import PointKind, points
from ddpsim.schedules.setup import SchemeInputs


def sums(
    setup: SchemeInputs,
    groups: Iterable[tuple[int, ...]],
    name: str = "bucket",
    operation: Operation = Operation.ALLREDUCE,
) -> list[Message]:
    """Return a message a group, which blocks nothing yet.

    Args:
        groups: registration indices of the gradients that go together.
        name: of the messages, with a number behind.
        operation: by which they are summed.
    """
    return [
        Message(
            id=f"{name} {place}",
            op=operation,
            size_bytes=setup.size_bytes(group),
            parameters=group,
            after=points(PointKind.GRADIENT, group),
            every=setup.every,
        )
        for place, group in enumerate(groups)
    ]
