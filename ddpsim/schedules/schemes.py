"""Schemes that keep a whole copy of the model on every rank: a function each, from a setup to a schedule.

`urgent_first` is the order that ranks agree on beforehand under `priority`: which message goes next, were gradients
ready and the wire as fast as expected.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.common.suboptions import some_bytes, value
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, PointKind, points
from ddpsim.schedules.schedule import Schedule, Sharding, Update, averages
from ddpsim.schedules.setup import SchemeInputs, sums

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


SAME_SUMS = ("ddp", "naive", "flat", "priority", "dear")
"""Schemes by which all ranks sum whole gradients, and every rank updates all it has, once an iteration.

Weights are DDP's: to the bit where each sum has its order, else within rounding. A name in it may take the place of
another while a run goes on (`use_schedule`, the tuner), and the executor's tests run each; a scheme that cuts a
gradient into messages belongs here too where every rank sums all of them."""
WITHOUT_BUCKETS = ("naive", "flat")
"""Of them those whose messages are the same whatever the buckets are."""


def ddp(setup: SchemeInputs) -> Schedule:
    """Torch's DDP: an allreduce a bucket, launched in order under backward, whose end waits for all."""
    messages = tuple(replace(message, blocks=(BACKWARD_END,)) for message in sums(setup, setup.buckets))
    return Schedule(scheme="ddp", messages=messages)


def naive(setup: SchemeInputs) -> Schedule:
    """An allreduce a gradient, after backward, in registration order; the optimizer waits for all."""
    alone = [(index,) for index in range(len(setup.parameters))]
    messages = tuple(sums(setup, alone, "p"))
    return _move_after_backward(Schedule(scheme="naive", messages=messages, sharding=Sharding(staging_bytes=0)))


def flat(setup: SchemeInputs) -> Schedule:
    """One allreduce of all gradients of a dtype, after backward; the optimizer waits for it."""
    by_dtype: dict[str, list[int]] = {}
    for index, parameter in enumerate(setup.parameters):
        by_dtype.setdefault(parameter.dtype, []).append(index)
    groups = [tuple(group) for group in by_dtype.values()]
    return _move_after_backward(Schedule(scheme="flat", messages=tuple(sums(setup, groups, "all"))))


def without_overlap(schedule: Schedule) -> Schedule:
    """Return `schedule` with nothing sent before backward has ended, and no update left for the next forward.

    Raises:
        PlanError: a schedule that gathers what forward and backward need, which cannot wait for their end.
    """
    for message in schedule:
        if not message.op.reduces and all(
            point.kind in (PointKind.FORWARD, PointKind.BACKWARD) for point in message.after
        ):
            what = "it gathers what forward and backward need, and cannot wait for their end"
            place = f"scheme {schedule.scheme!r}, message {message.id!r}"
            raise PlanError(what, place=place, remedy="leave `overlap=off` out")
    update: Update = "elsewhere" if schedule.update == "elsewhere" else "after_backward"
    return replace(_move_after_backward(schedule), overlap=False, update=update)


def priority(setup: SchemeInputs, segment_bytes: int | None = None, credit_bytes: int | None = None) -> Schedule:
    """Buckets in an order agreed beforehand, urgent for the next forward first; forward waits for each, not for all.

    Sources: P3 (Jayarajan et al., 2019), TicTac (Hashemi et al., 2019), ByteScheduler (Peng et al., 2019); the order
    planned as in PACE (Bao et al., 2020).

    Args:
        segment_bytes: most bytes sent at once, so that a more urgent bucket waits for no more than that.
        credit_bytes: bytes that are handed over ahead of the wire; None is one bucket, or one segment.
    """
    places = {place: rank for rank, place in enumerate(setup.in_forward_order(setup.buckets))}
    whole = [
        replace(
            message,
            priority=places[place],
            segment_bytes=segment_bytes,
            blocks=points(PointKind.OPTIMIZER, message.parameters),
        )
        for place, message in enumerate(sums(setup, setup.buckets))
    ]
    pieces = [piece for message in whole for piece in message.segments(align_bytes=16)]
    if setup.time_s is not None and setup.ready_s:
        time_s = setup.time_s

        def ready(piece: Message) -> float:
            return setup.last_ready(piece.parameters)

        def wire(piece: Message) -> float:
            return time_s(piece.op, piece.size_bytes)

        pieces = urgent_first(pieces, ready, wire, credit_bytes or 0)
    name = "priority" if segment_bytes is None else f"priority:{segment_bytes}"
    return Schedule(scheme=name, messages=tuple(pieces), update="before_use")


@dataclass(frozen=True, slots=True)
class PriorityOptions:
    """What `priority` may be asked behind its segment.

    Attributes:
        credit: bytes that are handed over ahead of the wire.
    """

    credit: int | None = value(some_bytes)


def dear(setup: SchemeInputs) -> Schedule:
    """Reduce-scatter a bucket under backward, all-gather it under the next forward, which waits for each.

    Source: DeAR (Zhang et al., 2023).
    """
    halves = sums(setup, setup.buckets, "scatter", Operation.REDUCE_SCATTER)
    gathers = [
        replace(
            halves[place],
            id=f"gather {place}",
            op=Operation.ALL_GATHER,
            after=(BACKWARD_END,),
            after_messages=(halves[place].id,),
            blocks=points(PointKind.OPTIMIZER, setup.buckets[place]),
        )
        for place in setup.in_forward_order(setup.buckets)
    ]
    return Schedule(scheme="dear", messages=(*halves, *gathers), update="before_use")


def zero1(setup: SchemeInputs) -> Schedule:
    """ZeRO-1: gradients reduce-scattered under backward, each rank updates its part, parameters all-gathered then.

    Source: ZeRO (Rajbhandari et al., 2020), section 5.1.
    """
    return replace(_zero(setup), scheme="zero1", sharding=Sharding(optimizer=setup.world_size))


def zero2(setup: SchemeInputs) -> Schedule:
    """ZeRO-2: ZeRO-1, where a rank keeps no gradient but those of its part. The messages are the same.

    Source: ZeRO (Rajbhandari et al., 2020), section 5.2.
    """
    sharding = Sharding(gradients=setup.world_size, optimizer=setup.world_size)
    return replace(_zero(setup), scheme="zero2", sharding=sharding)


def _zero(setup: SchemeInputs) -> Schedule:
    everything = tuple(range(len(setup.parameters)))
    halves = [
        replace(message, blocks=points(PointKind.OPTIMIZER, message.parameters))
        for message in sums(setup, setup.buckets, "scatter", Operation.REDUCE_SCATTER)
    ]
    gathers = [
        replace(
            halves[place],
            id=f"gather {place}",
            op=Operation.ALL_GATHER,
            after=points(PointKind.UPDATED, setup.buckets[place]),
            blocks=points(PointKind.FORWARD, everything),
        )
        for place in setup.in_forward_order(setup.buckets)
    ]
    return Schedule(scheme="zero", messages=(*halves, *gathers))


def _move_after_backward(schedule: Schedule) -> Schedule:
    """Return `schedule` with its sums after backward, awaited by the optimizer; what it gathers stays where it is."""
    late = []
    for message in schedule:
        if not message.op.reduces or averages(message):
            late.append(message)
            continue
        blocks = tuple(point for point in message.blocks if point != BACKWARD_END)
        # Where others update, what they send back is waited for, and a rank has no step of its own.
        steps = () if schedule.update == "elsewhere" else points(PointKind.OPTIMIZER, message.parameters)
        after = tuple(dict.fromkeys((*message.after, BACKWARD_END)))
        late.append(replace(message, after=after, delay_s=0.0, blocks=tuple(dict.fromkeys((*blocks, *steps)))))
    return replace(schedule, messages=tuple(late))
