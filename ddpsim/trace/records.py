"""What a run left behind, simulated or real: iterations, buckets, gradients and spans by rank and stream.

`ddpsim.simulation.simulate` and `ddpexec.running.run` both make a `Trace`; what comes after cannot tell which made it.
Times are seconds on one clock common to all ranks. The names of streams and events stand here and nowhere else.

Spans are drawn from iteration records (`spans_of`), so that simulated and measured runs look alike in a viewer.

What of it repeats is one period (`ddpsim/trace/cycles.py`): an iteration, the micro-batches of a step, or several steps
of a scheme.

Start at `Trace` and `Iteration`; `CollectiveTimes` names the moments in a collective's life.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

from ddpsim.common.documents.fields import MOST_ITEMS, STATED, AsRows, Bounds, NotInFile, Parsed
from ddpsim.common.operation import Operation

HOST = "host"
COMPUTE = "compute"
BUCKETS = "buckets"
LAYERS = "communication of layers"

ITERATION = "iteration"
INPUT = "input"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
COPY_OUT = "copy_out"
WAIT = "wait"
ALLREDUCE = "nccl:all_reduce"
BROADCAST = "nccl:broadcast"
COLLECTIVES: Mapping[str, str] = {
    Operation.ALLREDUCE: ALLREDUCE,
    Operation.REDUCE_SCATTER: "nccl:reduce_scatter",
    Operation.ALL_GATHER: "nccl:all_gather",
    Operation.BROADCAST: BROADCAST,
    Operation.REDUCE: "nccl:reduce",
    Operation.SENDRECV: "nccl:send_recv",
    Operation.ALL_TO_ALL: "nccl:all_to_all",
}
"""What a collective's span is called: as torch annotates it, whatever the backend."""


PEER_COPY = "Memcpy PtoP"
"""A copy from one device of a rank to another, as Kineto calls it."""


def compute_stream(device: int) -> str:
    """Return the name of the computing stream of the `device`-th device of a rank."""
    return COMPUTE if device == 0 else f"{COMPUTE} {device}"


def communication_stream(index: int) -> str:
    """Return the name of the `index`-th communication stream of a rank."""
    return f"communication {index}"


_MOST = 1 << 63
"""No time, count or size is as large."""
Whole = Annotated[int, Bounds(gt=-_MOST, lt=_MOST)]
Moment = Annotated[float, Bounds(gt=-_MOST, lt=_MOST)]
"""Seconds: when, or how long."""
_Registered = Annotated[int, Bounds(ge=0, lt=MOST_ITEMS)]
"""The place of a parameter, or of a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took time on one stream of one rank.

    `kernel` is True for what a GPU would show as a kernel (compute and communication streams); only these count for
    overlap. `args` are JSON values; times in them end in `_s` and are on the trace's clock.
    """

    rank: int
    stream: str
    name: str
    start_s: float
    duration_s: float
    kernel: bool = False
    args: Mapping[str, object] = field(default_factory=dict)

    @property
    def end_s(self) -> float:
        """End of the span."""
        return self.start_s + self.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """Says of one gradient when its hook fired on the host, and when it existed on the device."""

    parameter: _Registered
    hook_s: Moment
    ready_s: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTimes:
    """These moments are the life of one collective in one iteration of one rank.

    They are on the trace's clock, or, of a step that is summarised or drawn, from the start of its forward.

    Attributes:
        index: place in launch order.
        size_bytes: bytes of it; None where a trace does not say.
        parameters: whose gradients are in it; empty where it is no bucket, and where a step that is drawn does not name
            them. Registration indices, or places in the order of arrival where a trace tells no others.
        ready_s: what it sends was complete on the device.
        launched_s: the host handed it to the backend.
        started_s: it began on this rank (it may then wait for peers).
        wire_s: the last rank had arrived, so that bytes could move; None where unknown.
        finished_s: it ended on this rank.
        operation: of the process group, that carried it; as torch names it in a profiler's trace.
        own: it is DDP's or the sharding's, not one that a layer or the loop makes.
        ranks: how many take part; None where that is not known.
        name, group: of the call and its process group, where a trace names them.
    """

    index: Whole
    size_bytes: int | None
    parameters: tuple[_Registered, ...] = ()
    ready_s: Moment
    launched_s: Moment
    started_s: Moment
    wire_s: Moment | None = None
    finished_s: Moment
    operation: str
    own: Annotated[bool, NotInFile] = True
    ranks: Annotated[int | None, NotInFile] = None
    name: Annotated[str, NotInFile] = ""
    group: Annotated[str, NotInFile] = ""

    @classmethod
    def of_layer(
        cls, index: int, operation: str, size_bytes: int, started_s: float, finished_s: float
    ) -> CollectiveTimes:
        """Return a message inside a layer, for which its computation waits: it is sent as soon as it is there."""
        return CollectiveTimes(
            index=index, operation=operation, size_bytes=size_bytes, ready_s=started_s, launched_s=started_s,
            started_s=started_s, finished_s=finished_s, own=False,
        )  # fmt: skip

    @property
    def arrived_s(self) -> float:
        """When the rank had all it needs for it: before it began, so that this holds nothing of other ranks."""
        return min(max(self.ready_s, self.launched_s), self.finished_s)

    @property
    def moving_s(self) -> float:
        """When bytes could move: all ranks were there, as far as that is known."""
        return self.started_s if self.wire_s is None else self.wire_s

    @property
    def queued_s(self) -> float:
        """How long it was ready and no collective of it had begun."""
        return max(0.0, self.started_s - self.ready_s)

    @property
    def wait_s(self) -> float:
        """How long its collective waited for the last rank."""
        return max(0.0, self.moving_s - self.started_s)

    @property
    def on_wire_s(self) -> float:
        """How long its bytes moved."""
        return self.finished_s - self.moving_s

    def is_of_all(self, world_size: int | None) -> bool:
        """Whether all ranks of the run take part, as far as the trace says; in DDP's and the sharding's all do."""
        return self.own or self.ranks is None or self.ranks == world_size

    def shift(self, offset_s: float) -> Self:
        """Return it on a clock that is `offset_s` ahead."""
        moments = {name: at for name in MOMENTS if (at := getattr(self, name, None)) is not None}
        moved: dict[str, Any] = {name: at + offset_s for name, at in moments.items()}
        return replace(self, **moved)


MOMENTS = ("ready_s", "launched_s", "started_s", "wire_s", "finished_s", "written_s")
"""Fields of `BucketTimes` that are times, one after another."""

BUCKET = ("index", "size_bytes", "parameters", *MOMENTS, "operation", "device")
"""Fields of `BucketTimes` that are written: the others say nothing of a bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTimes(CollectiveTimes):
    """A collective whose bytes are gradients.

    Attributes:
        size_bytes: of its gradients.
        written_s: gradients were usable by the optimizer (copied out where a copy is made).
        device: of a rank that has several, number of the one whose gradients they are.
    """

    size_bytes: Whole
    parameters: tuple[_Registered, ...]
    wire_s: Moment | None
    written_s: Moment
    operation: Annotated[str, Parsed(Operation, str)] = Operation.ALLREDUCE
    device: _Registered = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """These moments are of what one of a rank's devices did of an iteration.

    Attributes:
        device: its number.
        name: the phase, or `PEER_COPY` to another device.
        started_s, finished_s: when.
    """

    device: _Registered
    name: str
    started_s: Moment
    finished_s: Moment


PHASES = ("input", "forward", "backward", "optimizer", "hooks")
"""What a rank does by itself in an iteration; `hooks` is what DDP's own work takes of its host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration of one rank.

    Six parts sum to `end_s - start_s`: the five below, and `ddp_overhead_s`, which is what is none of them (hooks,
    copies, launches, write-back). An iteration that waits for its batch or for messages of layers has more parts.
    """

    rank: Whole
    index: Whole
    start_s: Moment
    end_s: Moment
    """The start of the next forward."""
    forward_s: Moment
    backward_compute_s: Moment
    exposed_comm_s: Moment
    buffer_broadcast_s: Moment
    optimizer_s: Moment
    held_up_s: Moment = 0.0
    """How long forward was interrupted, in a schedule where it waits for messages and updates: time of other parts."""
    input_s: Moment | None = None
    """How long a batch was waited for, a seventh part; None where loading data is no part of the iteration.

    A simulated iteration begins with it, as forward waits for its own batch; a recorded one ends with it, in the wait
    for the next.
    """
    synced: bool = True
    """False under `no_sync`."""
    stepped: bool = True
    """False where no step of the optimizer ends the iteration, as gradients are accumulated."""
    buckets: Annotated[tuple[BucketTimes, ...], STATED] = ()
    gradients: Annotated[tuple[Gradient, ...], AsRows(), STATED] = ()
    layer_comm_s: Moment | None = None
    """How long layers waited for their own messages, as those of tensor parallelism, an eighth part; None without."""
    others: Annotated[tuple[CollectiveTimes, ...], NotInFile] = ()
    """Collectives that are no bucket: of layers, of a sharding, of the loop."""
    parts: tuple[PartTimes, ...] = ()
    """What each device did of a rank that has several, which compute in turn: time of other parts; empty with one."""
    overhead_s: Annotated[float | None, NotInFile] = None
    """`ddp_overhead_s` of a profiler's trace; None where it is the rest."""
    waits_s: Annotated[Mapping[str, float], NotInFile] = field(default_factory=dict)
    """More parts of a profiler's trace, as `all_to_all_s`: waits for nothing but collectives that are not DDP's."""
    host_s: Annotated[Mapping[str, float], NotInFile] = field(default_factory=dict)
    """What the host worked by phase (`PHASES`), waits left out; empty where the parts say it."""
    device_s: Annotated[Mapping[str, float], NotInFile] = field(default_factory=dict)
    """What the device worked by phase; likewise."""
    whole: Annotated[bool, NotInFile] = True
    """False of a last step of which the trace has no end."""

    def __repr__(self) -> str:
        what = f"{len(self.buckets)} buckets, {len(self.gradients)} gradients"
        return f"<Iteration: {self.index} of rank {self.rank}, {self.iteration_s * 1e3:.4g} ms, {what}>"

    @property
    def iteration_s(self) -> float:
        """Period from this start of forward to the next."""
        return self.end_s - self.start_s

    @property
    def ddp_overhead_s(self) -> float:
        """What the other parts leave."""
        if self.overhead_s is not None:
            return self.overhead_s
        return (
            self.iteration_s
            - self.forward_s
            - self.backward_compute_s
            - self.exposed_comm_s
            - self.buffer_broadcast_s
            - self.optimizer_s
            - (self.input_s or 0.0)
            - (self.layer_comm_s or 0.0)
            - sum(self.waits_s.values())
        )

    @property
    def collectives(self) -> tuple[CollectiveTimes, ...]:
        """Its buckets and all other collectives in launch order."""
        return tuple(sorted((*self.buckets, *self.others), key=lambda each: each.index))

    def own_s(self, phase: str) -> float:
        """Return what the rank itself took for a phase: the longer of host and device, which work at once."""
        return max(self.host_s.get(phase, 0.0), self.device_s.get(phase, 0.0))

    def shift(self, offset_s: float) -> Iteration:
        """Return it on a clock that is `offset_s` ahead."""
        if not offset_s:
            return self

        def moved(each: Any) -> Any:
            return replace(each, **{name: getattr(each, name) + offset_s for name in _ENDS[type(each)]})

        ends: Iteration = moved(self)
        return replace(
            ends,
            buckets=tuple(each.shift(offset_s) for each in self.buckets),
            others=tuple(each.shift(offset_s) for each in self.others),
            gradients=tuple(map(moved, self.gradients)),
            parts=tuple(map(moved, self.parts)),
        )


_ENDS = {
    Iteration: ("start_s", "end_s"),
    Gradient: ("hook_s", "ready_s"),
    PartTimes: ("started_s", "finished_s"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSpan:
    """A stretch of the longest path: what a simulated step waited for then.

    Attributes:
        stream: that it waited for, of the lowest recorded rank unless it names another.
        cause: what was done there.
    """

    stream: str
    cause: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that was recorded, by rank and then by time.

    Attributes:
        world_size: number of ranks of the run; some may have left no record.
        backend: `nccl` or `gloo`.
        iterations: of every recorded rank.
        spans: for people, Perfetto and HTA; numbers are taken from `iterations`.
        provenance: as in `run.json`: versions, seed, fingerprints, command, options.
        path: the longest path of a simulation, in order of time; empty where it was not asked for.
    """

    world_size: int
    backend: str
    iterations: Sequence[Iteration]
    spans: Sequence[Span] = ()
    provenance: Mapping[str, object] = field(default_factory=dict)
    path: Sequence[PathSpan] = ()

    def __repr__(self) -> str:
        what = f"{len(self.iterations)} iterations, {len(self.spans)} spans"
        return f"<{type(self).__name__}: {len(self.ranks)} of {self.world_size} ranks, {self.backend}, {what}>"

    @property
    def ranks(self) -> list[int]:
        """Ranks that left a record, ascending."""
        return sorted({iteration.rank for iteration in self.iterations})

    def path_of(self, iteration: Iteration) -> list[PathSpan]:
        """Return the longest path within `iteration`, in seconds from its start."""
        begin, end = iteration.start_s, iteration.end_s
        return [
            replace(span, start_s=max(span.start_s, begin) - begin, end_s=min(span.end_s, end) - begin)
            for span in self.path
            if span.start_s < end and span.end_s > begin
        ]

    def of_rank(self, rank: int) -> list[Iteration]:
        """Return the iterations of `rank`, by index."""
        return sorted((it for it in self.iterations if it.rank == rank), key=lambda it: it.index)


def spans_of(iterations: Sequence[Iteration], backend: str) -> list[Span]:
    """Return the spans of `iterations`: phases and waits, buckets, and collectives on as many streams as overlap.

    Collectives carry `args.backend`, `args.bucket`, `args.size_bytes` and the times of their bucket; those of layers
    have a stream of their own.
    """
    spans: list[Span] = []
    for iteration in iterations:
        spans += _phases(iteration)
        spans += _collectives(iteration, backend)
    return spans


def _phases(it: Iteration) -> Iterator[Span]:
    forward = it.start_s + (it.input_s or 0.0) + it.buffer_broadcast_s
    backward_end = max((g.ready_s for g in it.gradients), default=forward + it.forward_s + it.backward_compute_s)
    forward_end = forward + it.forward_s + it.held_up_s
    for layer in it.others:
        if layer.started_s < forward_end:
            forward_end += layer.finished_s - layer.started_s
    if it.input_s is not None:
        yield _span(it, HOST, INPUT, it.start_s, it.start_s + it.input_s, kernel=False)
    for part in it.parts:
        yield _span(it, compute_stream(part.device), part.name, part.started_s, part.finished_s)
    if not it.parts:
        yield _span(it, COMPUTE, FORWARD, forward, forward_end)
        yield _span(it, COMPUTE, BACKWARD, forward_end, backward_end)
        yield _span(it, COMPUTE, OPTIMIZER, max(backward_end, it.end_s - it.optimizer_s), it.end_s)
    if it.exposed_comm_s > 0:
        yield _span(it, HOST, WAIT, backward_end, backward_end + it.exposed_comm_s, kernel=False)


def _collectives(it: Iteration, backend: str) -> Iterator[Span]:
    free: list[float] = []
    for bucket in it.buckets:
        args: dict[str, Any] = {
            "bucket": bucket.index,
            "size_bytes": bucket.size_bytes,
            "ready_s": bucket.ready_s,
            "launched_s": bucket.launched_s,
            "wire_s": bucket.wire_s,
        }
        life = _span(it, BUCKETS, f"bucket {bucket.index}", bucket.ready_s, bucket.written_s, kernel=False)
        yield life
        stream = next((i for i, end in enumerate(free) if end <= bucket.started_s), len(free))
        free[stream : stream + 1] = [bucket.finished_s]
        # Each device has a communicator of its own, and with NCCL a stream.
        stream = bucket.device if it.parts else stream
        where, name = communication_stream(stream), COLLECTIVES[bucket.operation]
        yield _span(it, where, name, bucket.started_s, bucket.finished_s, backend=backend, **args)
        if bucket.written_s > bucket.finished_s:
            yield _span(it, compute_stream(bucket.device), COPY_OUT, bucket.finished_s, bucket.written_s, kernel=False)
    for layer in it.others:
        name, size_bytes = COLLECTIVES[layer.operation], layer.size_bytes
        yield _span(it, LAYERS, name, layer.started_s, layer.finished_s, backend=backend, size_bytes=size_bytes)


def _span(
    it: Iteration, stream: str, name: str, start_s: float, end_s: float, *, kernel: bool = True, **args: object
) -> Span:
    return Span(
        rank=it.rank,
        stream=stream,
        name=name,
        start_s=start_s,
        duration_s=max(0.0, end_s - start_s),
        kernel=kernel,
        args={"iteration": it.index, **args},
    )
