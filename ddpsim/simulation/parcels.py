"""What a schedule's messages cost a rank beside the wire: copies in and out, hooks, and what its host waits for."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.operations import Operation
from ddpsim.schedules.issuing import Lane
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, Kind
from ddpsim.schedules.schedule import Schedule, averages
from ddpsim.schedules.servers import SERVERS
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.reduction import Sends
from ddpsim.simulation.traffic import Parcel
from ddpsim.workload import Workload


def parcels_of(
    schedule: Schedule, workload: Workload, costs: Costs, lanes: Sequence[Lane], *, view: bool, gloo: bool
) -> tuple[Parcel, ...]:
    """Return the messages of `schedule`, in its order, with what each costs a rank that computes `workload`.

    Args:
        view: whether gradients live in what is sent.
        gloo: whether it is carried out over gloo, whose messages start when the host launches them.
    """
    rung = {(each.group, each.stream) for each in schedule if in_rings(schedule) and each.op.in_parts}
    numbers = {message.id: number for number, message in enumerate(schedule)}
    found = []
    for number, message in enumerate(schedule):
        whole = sum(workload.parameters[index].size_bytes for index in message.parameters)
        tensors = len(message.parameters) * message.size_bytes / whole if whole else 0.0
        copied, tensors = (message.size_bytes, tensors) if message.chunks is None else (whole, len(message.parameters))
        copy_s = tensors * costs.copy_s + copied / costs.copy_Bps
        found.append(
            Parcel(
                number,
                message.size_bytes,
                message.parameters,
                Sends(0.0, ((0.0, message.size_bytes),), 0.0, 0.0),
                (message.passes or float(_copied_out(message, schedule, view=view))) * copy_s,
                message.op,
                lanes.index((message.group, message.stream)),
                tuple(numbers[name] for name in message.after_messages),
                (message.launch_passes + _filled_at_launch(message, schedule, gloo=gloo)) * copy_s
                + _unit_s(message, costs),
                _host_awaits(message, gloo=gloo) and (message.group, message.stream) not in rung,
                message.delay_s,
                message.blocking,
            )
        )
    return tuple(found)


def _host_awaits(message: Message, *, gloo: bool) -> bool:
    """Whether the host waits for what comes before a message; a server does before it sends what it has updated."""
    return gloo and bool(message.after_messages) and message.group != SERVERS


def _in_place(message: Message) -> bool:
    """Whether a message is sent from where its tensors lie: it says so, or is a late allreduce of one gradient."""
    if message.in_place:
        return True
    late = BACKWARD_END in message.after
    return message.op is Operation.ALLREDUCE and len(message.parameters) == 1 and message.part is None and late


def filled_by_hooks(message: Message) -> bool:
    """Whether gradients are copied into it as they come, as DDP does; rows, and what a host waits for, go at once."""
    late = BACKWARD_END in message.after or message.blocking or message.sparse
    return message.op.reduces and not late and not averages(message)


def _filled_at_launch(message: Message, schedule: Schedule, *, gloo: bool) -> float:
    """Return the share of its bytes that the launch passes over: copies them in, or divides them where they lie.

    Gloo has no average, so that gradients are divided by the ranks before it sums them, which reads and writes each as
    a copy does. A host that waits for what it launches copies in what it sends: gradients, or its shard of parameters.
    """
    if averages(message):
        return float(gloo)
    if message.sparse:
        return float(message.op.reduces)
    if message.blocking and message.op.reduces:
        return 0.0 if message.after_messages else 1.0
    if message.blocking:
        return 1 / schedule.sharding.parameters
    late = message.op.reduces and BACKWARD_END in message.after
    return float(late and not message.in_place and (gloo or not _in_place(message)))


def _unit_s(message: Message, costs: Costs) -> float:
    """Return what the hooks of `fully_shard` take beside the launch and the end of a collective of a unit.

    A sum over copies is part of what comes before it.
    """
    if not message.blocking or message.after_messages:
        return 0.0
    return max(0.0, costs.unit_s - costs.launch_s - costs.finish_s)


def _copied_out(message: Message, schedule: Schedule, *, view: bool) -> bool:
    """Whether it is copied out where it has ended.

    Sums and gathered gradients are copied where the optimizer updates whole parameters after backward and gradients
    are no views: an optimizer that updates before use, or a part, takes them where they lie. Parameters are copied
    out where they are sharded; where only the optimizer is, they lie in what is gathered.
    """
    if message.op in (Operation.REDUCE_SCATTER, Operation.REDUCE, Operation.SENDRECV) or _in_place(message):
        return False
    if not message.op.reduces and all(point.kind is not Kind.OPTIMIZER for point in message.blocks):
        return schedule.sharding.parameters > 1
    return not view and schedule.update == "after_backward" and schedule.sharding.optimizer == 1


def in_rings(schedule: Schedule) -> bool:
    """Whether over gloo reduce-scatters and all-gathers are rings of sends, carried out by threads of their own.

    They are where this project's executor carries the schedule out; torch's `fully_shard` takes gloo's own operations.
    """
    return schedule.sharding.parameters == 1
