"""What a rank launches at once, when it may leave, and what it costs beside the wire.

A message is a bucket of DDP's or a message of a schedule. Copies in and out, hooks and the work of a compression scheme
are told here; which message may leave where is asked of the queue that an executor asks, `LaunchQueue`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ddpsim.bucketing import Bucket, LaunchQueue, Parameter
from ddpsim.collectives.ddp_costs import CODEC_KERNEL_S, CODEC_RATE, Costs
from ddpsim.collectives.linear import Linear, Rate
from ddpsim.compression import CompressionScheme, Roofline
from ddpsim.errors import PlanError
from ddpsim.operations import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, Point, PointKind
from ddpsim.schedules.schedule import Lane, Schedule, averages, gradient_points
from ddpsim.schedules.servers import SERVERS
from ddpsim.workload import Workload
from ddpsim.workload.gpus import AchievedGpu


@dataclass(frozen=True, slots=True)
class Encoding:
    """What one bucket sends, and what a rank computes for it.

    Attributes:
        encode_s: before the first message: on a CPU the host's time, else the device's.
        messages: (seconds since the message before has ended, bytes); the first has none.
        decode_s: after the last.
        host_s: of launching all that, beside the messages themselves; nothing on a CPU.
    """

    encode_s: float
    messages: tuple[tuple[float, int], ...]
    decode_s: float
    host_s: float


class CodecCosts:
    """A scheme at work on one kind of rank, priced with what was measured of it, else as DDP's own copies are.

    Then a byte read or written takes half of what a copied byte does, a kernel the least time of one, and of the host
    what a hook does; matrix products run at the share of the GPU's peak that fp32 training reaches.

    Args:
        scheme: of all buckets.
        parameters: of the model.
        world_size: messages that are gathered grow with it.
        costs: of DDP.
        gpu: that encodes; None is a CPU, or a GPU that nobody described.
        one_thread: whether the host encodes.
    """

    def __init__(
        self,
        scheme: CompressionScheme,
        parameters: Sequence[Parameter],
        world_size: int,
        costs: Costs,
        *,
        gpu: AchievedGpu | None,
        one_thread: bool,
    ) -> None:
        self._scheme, self._parameters, self._world_size = scheme, parameters, world_size
        flops = gpu.achieved_flops("gemm", "fp32") if gpu and "fp32" in gpu.peak_flops else None
        codec = costs.codec(scheme.name, one_thread=one_thread)
        kernel_s, rate = Linear.of(CODEC_KERNEL_S, codec.launch_s), Rate(codec.memory_bandwidth, CODEC_RATE)
        self._processor = Roofline(kernel_s, rate, flops)
        self._kernel_host_s = 0.0 if one_thread else costs.hook_s
        self._known: dict[tuple[int, ...], Encoding] = {}

    def encoding(self, bucket: Bucket) -> Encoding:
        """Return how `bucket` is encoded."""
        if (known := self._known.get(bucket.parameters)) is not None:
            return known
        parameters, time_s = [self._parameters[index] for index in bucket.parameters], self._processor.time_s
        works = self._scheme.works(parameters, self._world_size)
        sizes = [round(m.allreduce_bytes(self._world_size)) for m in self._scheme.messages(parameters)]
        pauses = [0.0, *map(time_s, works[1:-1])]
        host_s = sum(work.kernels for work in works) * self._kernel_host_s
        messages = tuple(zip(pauses, sizes, strict=True))
        found = self._known[bucket.parameters] = Encoding(time_s(works[0]), messages, time_s(works[-1]), host_s)
        return found


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """What a rank launches at once: a bucket of DDP's, or a message of a schedule.

    Attributes:
        number: place in the plan or the schedule.
        size_bytes: of the whole message.
        parameters: registration indices.
        encoding: the collectives it takes, with what is computed for them.
        write_back_s: device time of copying it out when it has ended.
        operation: what is done with it.
        lane: of its group and stream; None where process groups take turns.
        after: numbers of those that must have ended before it begins.
        fill_s: device time of copying into it when it is launched.
        host_awaits: whether the host waits for those before it launches it; else what carries it out does.
        delay_s: how long it waits before it begins, of itself.
        blocking: whether the host waits for its end where it launches it.
        from_host_s, to_host_s: of the copy engine, before it begins and once it has ended.
        device: number of the device, of a rank that has several, whose gradients it sends.
    """

    number: int
    size_bytes: int
    parameters: tuple[int, ...]
    encoding: Encoding
    write_back_s: float
    operation: Operation = Operation.ALLREDUCE
    lane: int | None = None
    after: tuple[int, ...] = ()
    fill_s: float = 0.0
    host_awaits: bool = False
    delay_s: float = 0.0
    blocking: bool = False
    from_host_s: float = 0.0
    to_host_s: float = 0.0
    device: int = 0


def messages_of(
    schedule: Schedule,
    workload: Workload,
    costs: Costs,
    lanes: Sequence[Lane],
    *,
    view: bool,
    gloo: bool,
    host_copy_s: float = 0.0,
) -> tuple[PlannedMessage, ...]:
    """Return the messages of `schedule`, in its order, with what each costs a rank that computes `workload`.

    Args:
        view: whether gradients live in what is sent.
        gloo: whether it is carried out over gloo, whose messages start when the host launches them.
        host_copy_s: of a byte between host and device.
    """
    rung = {(each.group, each.stream) for each in schedule if runs_in_rings(schedule) and each.op.in_parts}
    numbers = {message.id: number for number, message in enumerate(schedule)}
    found = []
    for number, message in enumerate(schedule):
        whole = sum(workload.parameters[index].size_bytes for index in message.parameters)
        tensors = len(message.parameters) * message.size_bytes / whole if whole else 0.0
        copied, tensors = (message.size_bytes, tensors) if message.chunks is None else (whole, len(message.parameters))
        copy_s = tensors * costs.copy_s + copied / costs.copy_Bps
        found.append(
            PlannedMessage(
                number,
                message.size_bytes,
                message.parameters,
                Encoding(0.0, ((0.0, message.size_bytes),), 0.0, 0.0),
                (message.passes or float(_is_copied_out(message, schedule, view=view))) * copy_s,
                message.op,
                lanes.index((message.group, message.stream)),
                tuple(numbers[name] for name in message.after_messages),
                (message.launch_passes + _share_filled_at_launch(message, schedule, gloo=gloo)) * copy_s
                + _unit_s(message, costs),
                _host_awaits(message, gloo=gloo) and (message.group, message.stream) not in rung,
                message.delay_s,
                message.blocking,
                message.from_host_bytes * host_copy_s,
                message.to_host_bytes * host_copy_s,
            )
        )
    return tuple(found)


def _host_awaits(message: Message, *, gloo: bool) -> bool:
    """Whether the host waits for what comes before a message; a server does before it sends what it has updated."""
    return gloo and bool(message.after_messages) and message.group != SERVERS


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


def _share_filled_at_launch(message: Message, schedule: Schedule, *, gloo: bool) -> float:
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


def _unit_s(message: Message, costs: Costs) -> float:
    """Return what the hooks of `fully_shard` take beside the launch and the end of a collective of a unit.

    A sum over copies is part of what comes before it.
    """
    if not message.blocking or message.after_messages:
        return 0.0
    return max(0.0, costs.unit_s - costs.launch_s - costs.finish_s)


def _is_copied_out(message: Message, schedule: Schedule, *, view: bool) -> bool:
    """Whether it is copied out where it has ended.

    Sums and gathered gradients are copied where the optimizer updates whole parameters after backward and gradients
    are no views: an optimizer that updates before use, or a part, takes them where they lie. Parameters are copied
    out where they are sharded; where only the optimizer is, they lie in what is gathered.
    """
    kept = (Operation.REDUCE_SCATTER, Operation.REDUCE, Operation.SENDRECV, Operation.ALL_TO_ALL)
    if message.op in kept or _is_in_place(message):
        return False
    if not message.op.reduces and all(point.kind is not PointKind.OPTIMIZER for point in message.blocks):
        return schedule.sharding.parameters > 1
    return not view and schedule.update == "after_backward" and schedule.sharding.optimizer == 1


def runs_in_rings(schedule: Schedule) -> bool:
    """Whether over gloo reduce-scatters and all-gathers are rings of sends, carried out by threads of their own.

    They are where this project's executor carries the schedule out; torch's `fully_shard` takes gloo's own operations.
    """
    return schedule.sharding.parameters == 1


class Launches:
    """Says what to launch at each point that a rank passes, and what to wait for before it: what its queue says.

    Args:
        queue: of the messages; `begin` begins its next iteration.
        planned: message of each number.
        ids: of the messages, for errors.
        parameters: how many the model has.
    """

    __slots__ = ("_gradients", "_ids", "_planned", "_queue")

    def __init__(
        self,
        queue: LaunchQueue[Point],
        planned: Sequence[PlannedMessage],
        ids: Sequence[str],
        parameters: int,
    ) -> None:
        self._queue, self._planned, self._ids = queue, planned, ids
        self._gradients = gradient_points(tuple(range(parameters)))

    def begin(self) -> list[PlannedMessage]:
        """Begin an iteration; return what to launch at its start."""
        return [self._planned[number] for number in self._queue.begin()]

    def reset(self, skipped: Collection[int]) -> None:
        """Forget what was passed and launched; messages of the numbers `skipped` are never launched."""
        self._queue.reset(skipped)

    def gradient(self, parameter: int, unused: Iterable[int] = ()) -> list[PlannedMessage]:
        """Announce a gradient, and before it those that will not come, in whose place zeros are sent.

        Returns:
            What to launch, in order.
        """
        came = self._queue.mark_passed(*(self._gradients[index] for index in unused)) if unused else []
        came += self._queue.mark_passed(self._gradients[parameter])
        return [self._planned[number] for number in came]

    def mark_passed(self, *points: Point) -> list[PlannedMessage]:
        """Announce points; return what to launch, in order."""
        return [self._planned[number] for number in self._queue.mark_passed(*points)]

    def take_waits(self, *points: Point) -> list[PlannedMessage]:
        """Return what must have ended before `points` are passed, in order.

        Raises:
            PlanError: a message that stands behind another which is not possible yet: a rank would wait for ever.
        """
        waited = self._queue.take_waits(*points)
        if held := [number for number in waited if self._queue.is_held(number)]:
            before = self._ids[self._queue.next_of(held[0])]
            what = f"{points[0]} waits for it, and it for {before!r} before it, which is not possible yet"
            place = f"message {self._ids[held[0]]!r}"
            raise PlanError(what, place=place, remedy="put it first, or on another stream")
        return [self._planned[number] for number in waited]
