"""A step as a graph: what each simulated rank does, on which resource, and what comes before it.

A graph is data. `ddpsim.simulation.build` writes it, `ddpsim.simulation.run` executes it, and what a trace reads of it
is in `RankGraph.iterations`. Nodes are numbered; node 0 is the origin, which has ended at time 0.

Read `NodeKind`, which says how long each kind of node takes, then `StepGraph` and `RankGraph`: columns by node, and the
resources that each take their nodes in order. `IterationNodes` and `MessageNodes` are what a trace is made of.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Literal

from ddpsim.common.operation import Operation
from ddpsim.simulation.ddp_costs import Encoding
from ddpsim.simulation.linear import Linear, Terms

BUFFERS_PART = "buffers: "
"""Before the names of constants in what broadcasts of buffers take: without communication there are none."""

BUFFERS: Literal["buffers"] = "buffers"
"""DDP's broadcast of rank 0's buffers, which has a cost of its own."""

CollectiveKey = tuple[str, int, int]
"""Operation, bytes and lane: collectives that have them in common take the same time alone."""

ORIGIN = 0
"""The node that has ended when time begins."""


class Cause(IntEnum):
    """Which part of a step a node's time is of."""

    OTHER = 0
    INPUT = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    DDP = 5  # hooks, copies into buckets and out of them, codecs
    HOST = 6  # launches, of whatever


LAUNCHES, LATENCY, BETWEEN_NODES, INSIDE_NODE, ENDS = (
    "host launches",
    "communication latency",
    "bandwidth between nodes",
    "bandwidth inside a node",
    "what the ends of a message keep up with",
)
BETWEEN_DEVICES = "copies between a rank's devices"
"""What else a step waits for, in words."""


class NodeKind(IntEnum):
    """A kind says how long a node takes, and what it may be slowed by."""

    MARK = 0  # no time; nothing waits for it, so that its end may be written later
    EVENT = 1  # no time; others wait for it
    COMPUTE = 2  # seconds of the processor, which collectives of its rank slow
    SERVE = 3  # seconds of the host for DDP, slowed where a collective of its rank is in flight
    LASTING = 4  # the same, long enough to slow collectives
    DELAY = 5  # seconds, whatever else goes on
    PACED = 6  # ends so many seconds after the one before was due: a layer that sleeps
    RESUME = 7  # counts what is due from now on, or later by the time since the node that it comes after began
    NOT_BEFORE = 8  # no sooner than seconds after the host has queued it
    WAIT = 9  # until all that it comes after has ended
    LOAD = 10  # until the loader has a batch
    COPY = 11  # bytes on links of the machine: a batch to the device, or what passes between a rank's devices
    COLLECTIVE = 12  # a message, with all ranks


@dataclass(frozen=True, slots=True)
class ExecutionModel:
    """An execution model says on which resources a rank's work is.

    Attributes:
        one_thread: whether host and device are one, as on a CPU, so that hooks and copies delay the computation.
        sleeps: whether layers sleep, each so long after the one before was due.
        devices: share of the parameters' bytes on each device, which each updates its own of.
    """

    one_thread: bool
    sleeps: bool = False
    devices: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy to a device of a rank.

    Attributes:
        source: number of the device that it comes from; None is the host's memory.
        target: number of the device.
        size_bytes: that are copied; of a batch the rank's input stage says it.
    """

    source: int | None
    target: int
    size_bytes: int


BATCH = Copy(None, 0, 0)
"""The copy of a batch, which the first device takes."""


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


@dataclass(slots=True, eq=False)
class Collective:
    """One rank's part in one message among all ranks of a group.

    Attributes:
        size_bytes: of the message.
        operation: what is done with it.
        lane: number of the process group, or group and stream, that it is launched on.
        number: place among the messages of its lane, equal on all ranks.
    """

    size_bytes: int
    operation: Operation | Literal["buffers"]
    lane: int
    number: int

    @property
    def key(self) -> CollectiveKey:
        """What its time alone depends on."""
        return str(self.operation), self.size_bytes, self.lane

    @property
    def carried_as(self) -> Operation:
        """The operation of its process group: buffers are broadcast."""
        return Operation.BROADCAST if self.operation == BUFFERS else Operation(self.operation)


@dataclass(slots=True)
class MessageNodes:
    """These nodes are the life of one bucket or message of a schedule on one rank.

    Attributes:
        planned: what is sent.
        ready: its last gradient was there.
        launched: the host's node that handed it over.
        first, last: its first collective and its last; one and the same where nothing is compressed.
        done: what was received is usable: decoded, after `last`.
        written: it was copied out; None where nothing has waited for it.
        awaited: whether a wait for it is in the graph.
    """

    planned: PlannedMessage
    ready: int
    launched: int
    first: int
    last: int
    done: int
    written: int | None = None
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class LayerNodes:
    """These nodes are a message that a layer waits for.

    Attributes:
        sent: its collective.
        begun, ended: of the wait.
        forward: whether forward waits, or backward.
    """

    sent: int
    begun: int
    ended: int
    forward: bool


Interval = tuple[int, int]
"""From the end of one node to the end of another."""


@dataclass(slots=True)
class IterationNodes:
    """The nodes from which one iteration of one rank is read: each part of it is a sum of intervals.

    Attributes:
        index: of the iteration.
        start, end: where it begins, and where the next one does.
        synced: whether gradients are reduced in it.
        adds: whether they are added to those of the micro-batches before it.
        stepped: whether the optimizer ends it with a step.
        optimizer_begun: where the optimizer last began and ends with the iteration; None where it has intervals.
        copied_s: device time of copies in backward, which are no computation.
        idle_s: time that the device idles in backward without DDP.
        exposed: waits for messages.
        gradients: of each its parameter, the host's hook and its completion.
        layers: messages that layers waited for.
        parts: what each device of several did, by number, and when: `forward`, `backward`, `optimizer`, or `copy`.
    """

    index: int
    start: int
    synced: bool
    adds: bool
    stepped: bool
    end: int = ORIGIN
    forward: list[Interval] = field(default_factory=list)
    held_up: list[Interval] = field(default_factory=list)
    backward: list[Interval] = field(default_factory=list)
    broadcast: list[Interval] = field(default_factory=list)
    optimizer: list[Interval] = field(default_factory=list)
    optimizer_begun: int | None = None
    input: Interval | None = None
    copied_s: float = 0.0
    idle_s: float = 0.0
    exposed: list[int] = field(default_factory=list)
    gradients: list[tuple[int, int, int]] = field(default_factory=list)
    messages: list[MessageNodes] = field(default_factory=list)
    layers: list[LayerNodes] = field(default_factory=list)
    parts: list[tuple[int, str, Interval]] = field(default_factory=list)


@dataclass(slots=True)
class RankGraph:
    """What one simulated rank does, by resource; each resource takes its nodes in order.

    Attributes:
        number: of the rank.
        one_thread: whether host and device are one, as on a CPU: no stream computes then.
        host: the thread that launches.
        streams: the computing stream of each device.
        copies: the device's copy engine.
        delays: on no resource: each begins when what it comes after has ended.
        lanes: collectives by process group, or by group and stream.
        last: the node with which the rank is done.
        nodes: all of the rank, whatever they are on.
    """

    number: int
    one_thread: bool
    lanes: list[list[int]]
    host: list[int] = field(default_factory=list)
    streams: list[list[int]] = field(default_factory=lambda: [[]])
    copies: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    iterations: list[IterationNodes] = field(default_factory=list)
    last: int = ORIGIN
    nodes: range = range(0)

    @property
    def compute(self) -> list[int]:
        """The computing stream of the first device."""
        return self.streams[0]

    def until(self, iterations: int, kind: Sequence[NodeKind]) -> RankGraph:
        """Return the first iterations; of marks, those where one of them begins or ends.

        Args:
            kind: of each node.
        """
        first = self.iterations[:iterations]
        last, ends = first[-1].end, {mark for each in first for mark in (each.start, each.end)}
        host, copies, delays, *lanes = (
            nodes[: bisect_right(nodes, last)] for nodes in (self.host, self.copies, self.delays, *self.lanes)
        )
        streams = [
            [node for node in stream[: bisect_right(stream, last)] if kind[node] is not NodeKind.MARK or node in ends]
            for stream in self.streams
        ]
        nodes = range(self.nodes.start, last + 1)
        return RankGraph(self.number, self.one_thread, lanes, host, streams, copies, delays, first, last, nodes)


@dataclass(slots=True)
class StepGraph:
    """The graph of all simulated ranks, unrolled over the iterations.

    Attributes:
        kind: of each node.
        seconds: what a node takes with nothing beside it.
        queued: the host's node after which a device may begin it.
        after: nodes that must have ended before it begins.
        terms: of the nodes whose seconds are made of DDP's costs, those.
        collectives: by node.
        copies: by node.
        cause: of each node's own time; `writing` is that of the nodes that are added now.
    """

    kind: list[NodeKind] = field(default_factory=lambda: [NodeKind.EVENT])
    seconds: list[float] = field(default_factory=lambda: [0.0])
    queued: list[int] = field(default_factory=lambda: [ORIGIN])
    after: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    terms: dict[int, Terms] = field(default_factory=dict)
    collectives: dict[int, Collective] = field(default_factory=dict)
    copies: dict[int, Copy] = field(default_factory=dict)
    ranks: list[RankGraph] = field(default_factory=list)
    cause: list[Cause] = field(default_factory=lambda: [Cause.OTHER])
    writing: Cause = Cause.OTHER

    def until(self, iterations: int) -> StepGraph:
        """Return the graph of the first iterations, without marks other than their ends; nodes keep their numbers."""
        return replace(self, ranks=[rank.until(iterations, self.kind) for rank in self.ranks])

    def add(self, kind: NodeKind, seconds: float = 0.0, queued: int = ORIGIN, after: tuple[int, ...] = ()) -> int:
        """Add a node and return its number; the caller puts it on a resource."""
        kinds = self.kind
        node = len(kinds)
        kinds.append(kind)
        if isinstance(seconds, Linear):
            self.terms[node] = seconds.terms
            seconds = float(seconds)
        self.seconds.append(seconds)
        self.queued.append(queued)
        self.after.append(after)
        self.cause.append(self.writing)
        return node

    def lengthen(self, node: int, seconds: float) -> None:
        """Let a node take so many seconds more."""
        if isinstance(seconds, Linear):
            self.terms[node] = self.terms.get(node, ()) + seconds.terms
        self.seconds[node] += float(seconds)


def beside_computing(graph: StepGraph, stream: Sequence[int]) -> set[int]:
    """Return the work of a device's stream beside which a collective waits for kernels of the model.

    That is the model's own, and DDP's copies that go over into it without a wait.
    """
    work, model_next = set[int](), False
    for node in reversed(stream):
        kind = graph.kind[node]
        if kind is NodeKind.COMPUTE:
            model_next |= graph.cause[node] is not Cause.DDP
            if model_next:
                work.add(node)
        elif kind in (NodeKind.WAIT, NodeKind.COPY):
            model_next = False
    return work
