"""A schedule without the points at which a rank has waited already: a unit's first parameter waits for its message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ddpsim.schedules.message import Message
from ddpsim.schedules.points import Kind, Point
from ddpsim.schedules.schedule import Schedule
from ddpsim.workload import Workload

When = Callable[[int], float]
"""When a rank comes to a parameter's point, in any unit."""


def at_first_points(schedule: Schedule, workload: Workload) -> Schedule:
    """Return `schedule` with each message blocking only the first of the points that it blocks in forward and backward.

    A rank that has waited at the first passes the others of the same message, so that nothing changes but what it costs
    to ask. Where gradients come in several orders, or none of a message's is known to come, backward's points stay.
    """
    device = np.nan_to_num(workload.forward_shares().device_s, nan=1.0)
    orders = np.argsort(workload.gradient_hook_s, axis=1, kind="stable")
    firsts: dict[Kind, When] = {Kind.FORWARD: lambda index: float(device[index])}
    if (orders == orders[0]).all() and not np.isnan(workload.gradient_hook_s).any():
        places = np.empty(len(workload.parameters))
        places[orders[0]] = np.arange(len(places))
        firsts[Kind.BACKWARD] = lambda index: float(places[index])
    return replace(schedule, messages=tuple(_trimmed(message, firsts) for message in schedule))


def _trimmed(message: Message, firsts: dict[Kind, When]) -> Message:
    kept: list[Point] = [point for point in message.blocks if point.kind not in firsts]
    for kind, when in firsts.items():
        found = [point for point in message.blocks if point.kind is kind and point.parameter is not None]
        kept += _first(found, when)
    return message if len(kept) == len(message.blocks) else replace(message, blocks=tuple(kept))


def _first(found: list[Point], when: When) -> list[Point]:
    if len(found) < 2:
        return found
    times = [when(point.parameter) for point in found if point.parameter is not None]
    return [found[times.index(min(times))]]
