"""A schedule beside tensor parallelism: its messages on the ranks that have the same part of each layer."""

from __future__ import annotations

from dataclasses import replace

from ddpsim.errors import PlanError
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.sharded import REPLICA

TENSOR, DATA = "tensor", "data"
"""Names of the groups: consecutive ranks that share each layer, and the ranks of one place in each of those groups."""

STRIDED = (REPLICA, DATA)
"""Groups of the ranks of one place in each group of consecutive ranks."""

LAYERS = (TENSOR, "layers")
"""The group and stream on which layers wait for their messages."""


def beside_tensor(schedule: Schedule, tensor_ranks: int, data_ranks: int) -> Schedule:
    """Return `schedule`, made for `data_ranks` ranks, with its messages on the data group of each rank.

    Raises:
        PlanError: a scheme whose ranks are in groups already, serve others, or are threads of one process.
    """
    grouped = bool(schedule.groups) or schedule.sharding.servers or schedule.sharding.hosts or schedule.patterns
    if grouped or schedule.asynchronous or schedule.one_process:
        what = f"its ranks cannot be in groups of {tensor_ranks} that share layers"
        remedy = "use ddp, naive, flat, priority, dear, zero1, zero2, zero3 or fsdp2, or leave `tensor_parallel` out"
        raise PlanError(what, place=f"scheme {schedule.scheme!r}", remedy=remedy)
    messages = tuple(replace(each, group=DATA) if each.group == WORLD else each for each in schedule)
    return replace(schedule, messages=messages, groups={TENSOR: tensor_ranks, DATA: data_ranks})
