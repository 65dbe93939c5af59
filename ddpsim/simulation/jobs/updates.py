"""What the optimizer updates at once under a schedule, and where forward waits for that and for messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ddpsim.schedules.points import Point, PointKind, points
from ddpsim.schedules.schedule import Schedule, parameters_at, updated_elsewhere
from ddpsim.workload import Workload

_ROUNDING = 1e-12
"""Of shares of forward: those no farther apart are one."""


@dataclass(frozen=True, slots=True)
class OptimizerUpdate:
    """What the optimizer does at once.

    Attributes:
        before, after: the points `optimizer:I` and `updated:I` of its parameters.
        share: of the optimizer's time on this rank.
        host_s: what it takes where the host has its state; None where the device has.
    """

    before: tuple[Point, ...]
    after: tuple[Point, ...]
    share: float
    host_s: float | None = None


WHOLE_UPDATE = OptimizerUpdate((), (), 1.0)
"""All at once, as without a schedule."""


@dataclass(frozen=True, slots=True)
class ForwardWait:
    """A place in forward before which messages may be waited for, and at which they may be launched.

    Attributes:
        host, work: share of forward that is over then, on the host and on the device.
        updates: what the optimizer has left until then.
        points: that are passed there.
    """

    host: float
    work: float
    updates: tuple[OptimizerUpdate, ...]
    points: tuple[Point, ...]


def updates_of(
    schedule: Schedule, workload: Workload, *, clipping: bool, scale_host: float
) -> tuple[tuple[ForwardWait, ...], tuple[OptimizerUpdate, ...]]:
    """Return where forward stops, and what the optimizer does after backward, each in order.

    Args:
        clipping: whether the norm of all gradients is clipped, so that all are updated together.
        scale_host: factor on the time of an optimizer whose state the host has.
    """
    count = len(workload.parameters)
    late = schedule.update == "before_use"
    together = clipping or not (late or _updates_apart(schedule, count))
    groups = [list(range(count))] if together else _groups(schedule, count)
    elsewhere = updated_elsewhere(schedule)
    groups = [mine for group in groups if (mine := [index for index in group if index not in elsewhere])]
    updates = [_update(schedule, workload, group, scale_host) for group in groups]
    late_updates = list(zip(groups, updates, strict=True)) if late else []
    return _find_waits(schedule, workload, late_updates), () if late else tuple(updates)


def _updates_apart(schedule: Schedule, count: int) -> bool:
    """Whether messages wait for parts of a sharded optimizer's update, which is then made part by part."""
    parts = [sum(point.kind is PointKind.UPDATED for point in message.after) for message in schedule]
    sharding = schedule.sharding
    return sharding.optimizer > 1 and sharding.parameters == 1 and any(0 < updated < count for updated in parts)


def _groups(schedule: Schedule, count: int) -> list[list[int]]:
    """Return the parameters that are updated together: those of messages that have any in common."""
    group = list(range(count + 1))

    def root(index: int) -> int:
        while group[index] != index:
            group[index] = group[group[index]]
            index = group[index]
        return index

    awaited: set[int] = set()
    for message in schedule:
        blocked = _parameters(PointKind.OPTIMIZER, message.blocks)
        awaited.update(blocked)
        for index in blocked[1:]:
            group[root(index)] = root(blocked[0])
    members: dict[int, list[int]] = {}
    for index in range(count):
        members.setdefault(root(index) if index in awaited else count, []).append(index)
    return list(members.values())


def _update(schedule: Schedule, workload: Workload, parameters: Iterable[int], scale_host: float) -> OptimizerUpdate:
    chosen = tuple(parameters)
    whole = sum(parameter.size_bytes for parameter in workload.parameters)
    share = sum(workload.parameters[index].size_bytes for index in chosen) / whole if whole else 1.0
    before, after = parameters_at(schedule, PointKind.OPTIMIZER), parameters_at(schedule, PointKind.UPDATED)
    sharding, offload = schedule.sharding, schedule.sharding.offload
    elements = sum(workload.parameters[index].numel for index in chosen) / sharding.optimizer
    return OptimizerUpdate(
        points(PointKind.OPTIMIZER, tuple(index for index in chosen if index in before)),
        points(PointKind.UPDATED, tuple(index for index in chosen if index in after)),
        share / sharding.optimizer,
        None if offload is None else scale_host * offload.host_s(elements, workload.optimizer_kind),
    )


def _parameters(kind: PointKind, *of: Iterable[Point]) -> list[int]:
    """Return the parameters whose point `kind` is among some points."""
    return [point.parameter for each in of for point in each if point.kind is kind and point.parameter is not None]


def _find_waits(
    schedule: Schedule, workload: Workload, late: Sequence[tuple[Sequence[int], OptimizerUpdate]]
) -> tuple[ForwardWait, ...]:
    """Return where forward stops.

    Args:
        late: the parameters that are updated before their use, with their update.
    """
    use = workload.forward_shares()
    device = np.nan_to_num(use.device_s, nan=1.0)
    host = np.nan_to_num(use.host_s, nan=1.0)
    first: dict[int, int] = {}
    for number, message in enumerate(schedule):
        for parameter in _parameters(PointKind.OPTIMIZER, message.blocks):
            first.setdefault(parameter, number)
    # A rank that has waited at the first point of a message passes its others.
    needed = set(_parameters(PointKind.FORWARD, *(message.after for message in schedule)))
    for message in schedule:
        if blocked := _parameters(PointKind.FORWARD, message.blocks):
            needed.add(min(blocked, key=device.__getitem__))
    waits: dict[float, tuple[list[tuple[int, OptimizerUpdate]], list[int]]] = {}
    for members, update in late:
        order = min(first.get(index, 0) for index in members)
        waits.setdefault(float(device[list(members)].min()), ([], []))[0].append((order, update))
    for index in sorted(needed, key=lambda index: (device[index], index)):
        waits.setdefault(float(device[index]), ([], []))[1].append(index)
    stops, over = [], 0.0
    for share in sorted(waits):
        updates, parameters = waits[share]
        over = max(over, float(host[np.abs(device - share) <= _ROUNDING].min()))
        chosen = tuple(update for _, update in sorted(updates, key=lambda pair: pair[0]))
        stops.append(ForwardWait(over, share, chosen, points(PointKind.FORWARD, tuple(parameters))))
    return tuple(stops)
