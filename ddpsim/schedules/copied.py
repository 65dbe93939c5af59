"""What is copied into a schedule's messages and out of them, as executors do it."""

from __future__ import annotations

from ddpsim.common.operation import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, PointKind
from ddpsim.schedules.schedule import Schedule, averages


def _is_in_place(message: Message) -> bool:
    """Whether a message is sent from where its tensors lie: it says so, or is a late allreduce of one gradient."""
    if message.in_place:
        return True
    late = BACKWARD_END in message.after
    return message.op is Operation.ALLREDUCE and len(message.parameters) == 1 and message.part is None and late


def is_filled_by_hooks(message: Message) -> bool:
    """Whether gradients are copied into it as they come, as DDP does; rows, and what a host waits for, go at once."""
    late = BACKWARD_END in message.after or message.blocking or message.sparse
    return message.op.reduces and not late and not averages(message)


def share_filled_at_launch(message: Message, schedule: Schedule, *, gloo: bool) -> float:
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
    return float(late and not message.in_place and (gloo or not _is_in_place(message)))


def is_copied_out(message: Message, schedule: Schedule, *, view: bool) -> bool:
    """Whether it is copied out where it has ended.

    Sums and gathered gradients are copied where the optimizer updates whole parameters after backward and gradients
    are no views: an optimizer that updates before use, or a part, takes them where they lie. Parameters are copied
    out where they are sharded; where only the optimizer is, they lie in what is gathered.
    """
    left_in_place = (Operation.REDUCE_SCATTER, Operation.REDUCE, Operation.SENDRECV, Operation.ALL_TO_ALL)
    if message.op in left_in_place or _is_in_place(message):
        return False
    if not message.op.reduces and all(point.kind is not PointKind.OPTIMIZER for point in message.blocks):
        return schedule.sharding.parameters > 1
    return not view and schedule.update == "after_backward" and schedule.sharding.optimizer == 1


def runs_in_rings(schedule: Schedule) -> bool:
    """Whether over gloo reduce-scatters and all-gathers are rings of sends, carried out by threads of their own.

    They are where this project's executor carries the schedule out; torch's `fully_shard` takes gloo's own operations.
    """
    return schedule.sharding.parameters == 1 and any(message.op.in_parts for message in schedule)
