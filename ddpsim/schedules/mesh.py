"""A schedule beside tensor or expert parallelism: its messages on the ranks that have the same part of the model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ddpsim.bucketing import Parameter
from ddpsim.errors import PlanError
from ddpsim.operations import Operation
from ddpsim.schedules.message import WORLD, Message
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.sharded import REPLICA

TENSOR, EXPERT, DATA = "tensor", "expert", "data"
"""Names of the groups: consecutive ranks that share each layer, or the experts, and the ranks of one place in each of
those groups."""

STRIDED = (REPLICA, DATA)
"""Groups of the ranks of one place in each group of consecutive ranks."""

LAYERS = ((TENSOR, "layers"), (EXPERT, "layers"))
"""The groups and streams on which layers wait for their messages."""


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


def beside_experts(
    schedule: Schedule, expert_ranks: int, data_ranks: int, parameters: Sequence[Parameter], experts: Collection[int]
) -> Schedule:
    """Return `schedule` with the sums of the experts' gradients on the data group of each rank, all others on all.

    Args:
        parameters: of a rank, and
        experts: registration indices of those of its experts.

    Raises:
        PlanError: a scheme whose ranks are in groups already, or that does more than to sum whole gradients.
    """
    plain = all(each.op is Operation.ALLREDUCE and each.part is None and not each.after_messages for each in schedule)
    if schedule.groups or schedule.sharding.servers or schedule.patterns or schedule.asynchronous or not plain:
        what = f"it does more than to sum gradients, and experts in groups of {expert_ranks} ranks have theirs apart"
        remedy = "use ddp, naive, flat or priority without segments, or leave `expert_parallel` out"
        raise PlanError(what, place=f"scheme {schedule.scheme!r}", remedy=remedy)
    messages = tuple(part for each in schedule for part in _apart(each, parameters, frozenset(experts)))
    return replace(schedule, messages=messages, groups={EXPERT: expert_ranks, DATA: data_ranks})


def _apart(message: Message, parameters: Sequence[Parameter], experts: frozenset[int]) -> Iterator[Message]:
    """Yield what a message sums of the experts, on the group of their data, and what it sums of all else."""
    dense = [index for index in message.parameters if index not in experts]
    if len(dense) in (0, len(message.parameters)):
        yield message if dense else replace(message, group=DATA)
        return
    for name, group, chosen in (("", WORLD, set(dense)), (" experts", DATA, experts & {*message.parameters})):
        yield replace(
            message,
            id=message.id + name,
            group=group,
            parameters=tuple(index for index in message.parameters if index in chosen),
            size_bytes=sum(parameters[index].size_bytes for index in chosen),
            after=tuple(point for point in message.after if point.parameter is None or point.parameter in chosen),
            blocks=tuple(point for point in message.blocks if point.parameter is None or point.parameter in chosen),
        )
