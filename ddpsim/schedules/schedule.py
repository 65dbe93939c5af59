"""A schedule: what one iteration of data-parallel training sends, when, and what waits for it.

Read `Schedule`; its messages are `message.Message`s. Its queue (`queue_of`) says which may be launched at a point, and
for which a rank waits there. `check` refuses what could not be carried out, or would not train.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ddpsim.bucketing import LaunchQueue
from ddpsim.bucketing.assign import Parameter
from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.schedules.message import WORLD, Message, cut
from ddpsim.schedules.offload import HostOffload
from ddpsim.schedules.outer import OuterStep
from ddpsim.schedules.points import BACKWARD_END, Point, PointKind, points

SCHEMA = "ddpsim.schedule/1"

TRAINERS = "trainers"
"""The process group of all ranks that train, where others serve."""

Update = Literal["after_backward", "before_use", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Sharding:
    """A sharding says over how many ranks each kind of state is split, and what a rank keeps for that beside it.

    Attributes:
        parameters, gradients, optimizer: ranks that share one copy; 1 is a copy on every rank. Where parameters are
            shared by different numbers of ranks, the mean by bytes.
        gathered_bytes: of gathered parameters, as backward begins.
        staging_bytes: of buffers in which gradients lie to be reduced, as backward begins; None where every sum has its
            own all the time, as DDP's buckets.
        kept_bytes: of buffers that stay from step to step beside those.
        master: whether the optimizer updates an fp32 copy of its own, with its state in fp32, of parameters of 16 bits.
        servers: ranks that do not train, and have the optimizer's state.
        hosts: the ranks that are servers, or whose places servers share.
        offload: says that the shards are in the host's memory; None has them on the device.
    """

    parameters: float = 1
    gradients: float = 1
    optimizer: float = 1
    gathered_bytes: int = 0
    staging_bytes: int | None = None
    kept_bytes: int = 0
    master: bool = False
    servers: int = 0
    hosts: tuple[int, ...] = ()
    offload: HostOffload | None = None


UNSHARDED = Sharding()

Lane = tuple[str, str]
"""A group and a stream, whose messages are launched in the order of the schedule."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward, or one backward, of what a rank has: of a model in stages that of a stage and a micro-batch.

    Attributes:
        kind: which of both.
        stage: of the model; a whole one is one stage.
        number: of the micro-batch: the gradients of all but the first are added to those before.
        last: whether it is the last of its kind and stage: behind such a backward gradients are whole.
        receives: on which lane it waits for what another rank has computed; None where it does not.
        sends: on which lane it sends on what it has computed; None where it does not.
        size_bytes: of either message.
        settles: where the rank waits for all that it has sent until then: with what it receives, and once it has
            `computed`, or `sent`.
    """

    kind: Literal["forward", "backward"]
    stage: int = 0
    number: int = 0
    last: bool = True
    receives: Lane | None = None
    sends: Lane | None = None
    size_bytes: int = 0
    settles: frozenset[Literal["received", "computed", "sent"]] = frozenset()


WHOLE_PASSES = (Pass("forward"), Pass("backward"))
"""Of a rank that has a whole model, or a part of each layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Messages in the order in which they are launched, on every rank alike.

    Attributes:
        scheme: name of the scheme that made it, with its options.
        messages: of one iteration.
        update: when the optimizer updates a parameter: all of them after backward, or each group just before the
            next forward needs one of it, where a message that blocks `optimizer:I` may come in as late; or ranks that
            do not train update, and messages bring what they have updated.
        sharding: which state is split over ranks.
        groups: ranks of each process group beside `world`: `shard` is so many consecutive ranks, `replica` the ranks of
            one place in each shard group.
        patterns: by group, the pattern that its messages follow, one of `--algorithm`; the backend's own elsewhere.
        ranks_meet: whether a message goes once all its ranks have come to it; else each rank's goes alone.
        overlap: whether messages may begin before backward has ended.
        broadcasts_buffers: whether module buffers are broadcast before a forward, as DDP does where it is asked to.
        one_process: whether the ranks are threads of one process, on the GPUs of one machine: their forwards share one
            interpreter, and one thread loads and copies the batches of all.
        outer: what is done with averages of parameters, beside taking them: SlowMo's step; None is nothing.
        passes: what a rank computes in an iteration, in order, and sends others for that.
        place: among the ranks of a copy of a model in stages, of those who carry it out; None are all ranks.
    """

    scheme: str
    messages: tuple[Message, ...]
    update: Update = "after_backward"
    sharding: Sharding = UNSHARDED
    groups: dict[str, int] = field(default_factory=dict)
    overlap: bool = True
    broadcasts_buffers: bool = True
    one_process: bool = False
    outer: OuterStep | None = None
    patterns: dict[str, str] = field(default_factory=dict)
    ranks_meet: bool = True
    passes: tuple[Pass, ...] = WHOLE_PASSES
    place: int | None = None

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"<Schedule {self.scheme}: {len(self.messages)} messages, {self.size_bytes} bytes>"

    @property
    def size_bytes(self) -> int:
        """Bytes of all messages, as nccl-tests counts them."""
        return sum(message.size_bytes for message in self.messages)

    def in_segments(self, align_bytes: int = 1) -> Schedule:
        """Return this schedule with every message cut into its segments."""
        pieces = tuple(cut(self.messages, align_bytes))
        return replace(self, messages=pieces)

    def document(self) -> dict[str, Any]:
        """Return the schedule as its file has it."""
        return {
            "schema": SCHEMA,
            "scheme": self.scheme,
            "update": self.update,
            "messages": [message_document(message) for message in self.messages],
            "fingerprint": self.fingerprint(),
        }

    def fingerprint(self) -> str:
        """Return what is equal where two schedules are: 16 hexadecimal digits."""
        text = json.dumps([self.update, [message_document(message) for message in self.messages]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def message_document(message: Message) -> dict[str, Any]:
    """Return a message as a schedule file has it."""
    document: dict[str, Any] = {
        "id": message.id,
        "op": message.op.value,
        "parameters": list(message.parameters),
        "bytes": message.size_bytes,
        "group": message.group,
        "stream": message.stream,
        "priority": message.priority,
        "segment_bytes": message.segment_bytes,
        "after": [*map(str, message.after), *(f"message:{name}" for name in message.after_messages)],
        "blocks": [*map(str, message.blocks)],
    }
    # What a message has by default is left out, so that a fingerprint stays where a later version has one more key.
    if message.part is not None:
        document["part"] = list(message.part)
    if message.chunks is not None:
        chunks = asdict(message.chunks)
        document["chunks"] = chunks if message.chunks.momentum else {k: v for k, v in chunks.items() if k != "momentum"}
    if message.delay_s:
        document["delay_s"] = message.delay_s
    if message.every != 1:
        document["every"] = message.every
    if message.blocking:
        document["blocking"] = True
    if message.sparse:
        document["sparse"] = True
    if message.from_host_bytes:
        document["from_host_bytes"] = message.from_host_bytes
    if message.to_host_bytes:
        document["to_host_bytes"] = message.to_host_bytes
    return document


def check(schedule: Schedule, parameters: Sequence[Parameter], world_size: int, frozen: int = 0) -> None:
    """Refuse a schedule that cannot be carried out, or that would not train `parameters` on `world_size` ranks.

    Args:
        frozen: how many more parameters there are, which messages may gather.

    Raises:
        PlanError: names used twice or not known, a message that waits for itself, a gradient that no message sums or
            that two do, parameters beyond the model, shards that do not divide the world; it names the message or the
            parameter.
    """
    known = _index_messages(schedule)
    for message in schedule:
        _check_names(message, known, schedule, len(parameters) + frozen)
    _check_circles(known)
    for name, ranks in schedule.groups.items():
        among = world_size - schedule.sharding.servers if name == TRAINERS else world_size
        if ranks < 1 or among % ranks:
            what, remedy = f"groups of {ranks} ranks do not divide a world of {world_size}", "give a divisor"
            raise PlanError(what, place=f"group {name!r}", remedy=remedy)
    if world_size > 1:
        _check_cover(schedule, parameters)


def _index_messages(schedule: Schedule) -> dict[str, Message]:
    known: dict[str, Message] = {}
    for message in schedule:
        if known.setdefault(message.id, message) is not message:
            raise PlanError("two messages have this name", place=f"message {message.id!r}", remedy="rename one")
    return known


def _check_names(message: Message, known: dict[str, Message], schedule: Schedule, count: int) -> None:
    place = f"message {message.id!r}"
    for name in message.after_messages:
        if name not in known:
            raise PlanError(f"waits for {name!r}, which is no message", place=place, remedy="name one of the schedule")
    if message.group != WORLD and message.group not in schedule.groups:
        remedy = f"use {', '.join([WORLD, *schedule.groups])}"
        raise PlanError(f"{message.group!r} is no group of the schedule", place=place, remedy=remedy)
    named = [*message.parameters, *(p.parameter for p in (*message.after, *message.blocks) if p.parameter is not None)]
    for index in named:
        if not 0 <= index < count:
            raise PlanError(f"parameter {index} is not in a model of {count}", place=place, remedy="count from 0")


def _check_circles(known: dict[str, Message]) -> None:
    done: set[str] = set()
    for start in known:
        path: list[str] = []
        stack = [(start, iter(known[start].after_messages))]
        path.append(start)
        while stack:
            name, rest = stack[-1]
            following = next((each for each in rest if each not in done), None)
            if following is None:
                done.add(name)
                path.pop()
                stack.pop()
            elif following in path:
                circle = " -> ".join([*path[path.index(following) :], following])
                raise PlanError(
                    f"waits for itself: {circle}", place=f"message {following!r}", remedy="break the circle"
                )
            else:
                path.append(following)
                stack.append((following, iter(known[following].after_messages)))


def _check_cover(schedule: Schedule, parameters: Sequence[Parameter]) -> None:
    """Refuse gradients that not exactly one message sums, in one piece or in parts that fit, and sums never awaited.

    What sums sums further, as those of a shard over its copies, is no second one. The gradient of a parameter that a
    message averages need not be summed; two messages may not average one.
    """
    averaging: dict[int, list[Message]] = {}
    for message in schedule:
        if averages(message):
            for index in message.parameters:
                averaging.setdefault(index, []).append(message)
    summing: dict[int, list[Message]] = {}
    awaited = {name for message in schedule for name in message.after_messages}
    # A sum that comes after another message's is of what that one summed already: it covers no gradient anew.
    partial = {message.id for message in schedule if message.op.reduces}
    for message in schedule:
        if message.op.reduces and gradients(message) and not partial.intersection(message.after_messages):
            if not message.blocks and message.id not in awaited:
                what = "nothing waits for it"
                raise PlanError(what, place=f"message {message.id!r}", remedy="let it block `optimizer:INDEX`")
            for index in message.parameters:
                summing.setdefault(index, []).append(message)
    for index, parameter in enumerate(parameters):
        sums, place = summing.get(index, []), f"parameter {index} ({parameter.name})"
        averaged = averaging.get(index, [])
        if not sums and not averaged:
            raise PlanError("no message sums its gradient", place=place, remedy="cover every parameter")
        for what, several in (("its gradient is summed", sums), ("it is averaged", averaged)):
            if len(several) > 1 and not _fit(several):
                names = ", ".join(message.id for message in several)
                raise PlanError(f"{what} by more than one message: {names}", place=place, remedy="keep one")


def _fit(parts: Sequence[Message]) -> bool:
    """Whether messages are parts of the same parameters, one behind the other."""
    ranges = sorted(message.part for message in parts if message.part is not None)
    if len(ranges) < len(parts) or len({message.parameters for message in parts}) > 1:
        return False
    return all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


def updated_elsewhere(schedule: Schedule) -> frozenset[int]:
    """Return the parameters that come back before forward from who summed their gradients, and so has updated them."""
    back = (each for each in schedule if each.op is Operation.BROADCAST and each.after_messages)
    forward = (each for each in back if {point.kind for point in each.blocks} == {PointKind.FORWARD})
    return frozenset(index for message in forward for index in message.parameters)


def averages(message: Message) -> bool:
    """Whether a message averages parameters: it sums after their update."""
    return message.op.reduces and any(point.kind is PointKind.UPDATED for point in message.after)


def gradients(message: Message) -> tuple[int, ...]:
    """Return the parameters whose gradients must be ready before `message`."""
    return tuple(p.parameter for p in message.after if p.kind is PointKind.GRADIENT and p.parameter is not None)


def parameters_at(schedule: Schedule, kind: PointKind) -> frozenset[int]:
    """Return the parameters at whose point `kind` something may be launched or waited for."""
    named = (point for message in schedule for point in (*message.after, *message.blocks) if point.kind is kind)
    return frozenset(point.parameter for point in named if point.parameter is not None)


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
    return LaunchQueue([*map(gradient_points, groups)], blocks=[(BACKWARD_END,)] * len(groups))


@functools.lru_cache(maxsize=1024)  # every rank of a simulation asks for the same
def gradient_points(group: tuple[int, ...]) -> tuple[Point, ...]:
    """Return the points at which the gradients of `group` are ready."""
    return points(PointKind.GRADIENT, group)
