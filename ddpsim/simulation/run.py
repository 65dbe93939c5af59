"""Runs a graph on SimPy: each resource takes its nodes in order, each node begins when what it comes after has ended.

Start at `GraphRun.add`, which starts a process for each resource of a rank; `_Resources` has what each process does.

Two shortcuts keep events few, without moving any time. A device's host is a clock that runs ahead of the simulation:
what it does takes its time whatever else goes on, until it waits for a node. And work that the host has queued already
is one stretch of the device, however many kernels it has.

Whoever changes when a node begins changes it twice: `retiming.dependencies` and `retiming.retime` (`_meet` for
collectives) state the same rules as sums and maxima, by which a band is computed without running the graph again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import simpy

from ddpsim.common.options.input_stage import Loader
from ddpsim.simulation.contention import Process, Processor
from ddpsim.simulation.graph import ORIGIN, Collective, Copy, NodeKind, RankGraph, StepGraph, beside_computing

_NEVER = float("inf")

Progress = Callable[[int, int], None]
"""Called with what is done and how much there is in all."""

StartCopy = Callable[[Copy], simpy.Event]
"""Starts a copy; the event is its end."""

Transfer = Callable[[Collective], simpy.Event]
"""Starts the bytes of a collective whose ranks are all there, or of one rank's own; returns the event of their end."""


@dataclass(slots=True)
class NodeTimes:
    """When each node of a graph began and ended, in seconds; infinity until it has.

    Attributes:
        wire: by collective, when the last rank had arrived.
        idled: by event of a device, for how long until then it had waited for its host, and for messages.
    """

    begin: list[float]
    end: list[float]
    wire: dict[int, float] = field(default_factory=dict)
    idled: dict[int, tuple[float, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Rendezvous:
    finished: simpy.Event
    nodes: list[int] = field(default_factory=list)


class GraphRun:
    """One run of a graph; ranks are added with what they run on, then it is run.

    Args:
        env: the simulation.
        graph: that is run.
        transfer: of what all ranks meet for; None ends each collective at once (`comm=noop`).
        streams: how many collectives of a lane are in flight at once, in order.

    Attributes:
        meets: whether collectives take any time.
    """

    def __init__(self, env: simpy.Environment, graph: StepGraph, transfer: Transfer | None, streams: int) -> None:
        count = len(graph.kind)
        self.env, self.graph, self.times = env, graph, NodeTimes([_NEVER] * count, [_NEVER] * count)
        self.times.begin[ORIGIN] = self.times.end[ORIGIN] = 0.0
        self._transfer, self._streams, self.meets = transfer, streams, transfer is not None
        self._events: dict[int, simpy.Event] = {}
        lanes = zip(*(rank.lanes for rank in graph.ranks), strict=True)
        # A rank without messages on a lane is no member of its group: nobody waits for it there.
        self._members = [sum(bool(nodes) for nodes in lane) for lane in lanes]
        self._meetings: dict[tuple[int, int], _Rendezvous] = {}

    def add(
        self,
        rank: RankGraph,
        processors: Sequence[Processor],
        *,
        loader: Loader | None = None,
        copy: StartCopy | None = None,
        channel: Transfer | None = None,
    ) -> None:
        """Start the resources of a rank; each of several devices has a lane of collectives.

        Args:
            processors: that compute, one a device, and are slowed while a collective of theirs is in flight.
            loader: of batches.
            copy: of batches, and between devices.
            channel: carries its collectives without the other ranks; None meets them.
        """
        resources = _Resources(self, rank, processors[0], loader, copy, channel, rank.compute)
        self._communicate(resources, rank.lanes if len(processors) == 1 else rank.lanes[:1])
        if rank.one_thread:
            self.env.process(resources.thread())
        else:
            self.env.process(resources.compute())
            self.env.process(resources.host())
        if rank.copies:
            self.env.process(resources.copy_batches())
        for node in rank.delays:
            self.env.process(self._delay(node))
        for number, processor in enumerate(processors[1:], 1):
            other = replace(resources, processor=processor, stream=rank.streams[number])
            self._communicate(other, [rank.lanes[number]])
            self.env.process(other.compute())

    def _communicate(self, resources: _Resources, lanes: Sequence[Sequence[int]]) -> None:
        for nodes in lanes:
            if nodes:
                # The streams of a lane take from one iterator: the next collective goes to whichever is free first.
                queue = iter(nodes)
                for _ in range(self._streams):
                    self.env.process(resources.communicate(queue))

    def run(self, until: Sequence[int] | None = None) -> NodeTimes:
        """Run until all ranks are done, or nodes of theirs have ended; return when each node began and ended."""
        self.env.run(self.done() if until is None else self.env.all_of([self.event(node) for node in until]))
        return self.times

    def done(self) -> simpy.Event:
        """Return the event of the end of all ranks."""
        return self.env.all_of([self.event(rank.last) for rank in self.graph.ranks])

    def event(self, node: int) -> simpy.Event:
        """Return the event of a node's end."""
        if node not in self._events:
            self._events[node] = self.env.event()
            if self.times.end[node] <= self.env.now:
                self._events[node].succeed()
        return self._events[node]

    def mark_ended(self, node: int) -> None:
        """Note that a node ends now."""
        self.times.end[node] = self.env.now
        event = self._events.get(node)
        if event is not None:
            event.succeed()

    def all_ended(self, nodes: Sequence[int]) -> Process:
        """Wait until nodes have ended."""
        end = self.times.end
        for node in nodes:
            if end[node] > self.env.now or (node in self._events and not self._events[node].processed):
                yield self.event(node)

    def meet(self, node: int) -> simpy.Event:
        """Bring one rank's part in a collective; return the event of its end, for which the last rank is waited."""
        collective = self.graph.collectives[node]
        where = (collective.lane, collective.number)
        meeting = self._meetings.setdefault(where, _Rendezvous(self.env.event()))
        meeting.nodes.append(node)
        if len(meeting.nodes) == self._members[collective.lane]:
            for each in meeting.nodes:
                self.times.wire[each] = self.env.now
            del self._meetings[where]
            assert self._transfer is not None
            self._transfer(collective).callbacks.append(meeting.finished.trigger)
        return meeting.finished

    def _delay(self, node: int) -> Process:
        yield from self.all_ended(self.graph.after[node])
        self.times.begin[node] = self.env.now
        yield self.env.timeout(self.graph.seconds[node])
        self.mark_ended(node)


@dataclass(slots=True)
class _Resources:
    """The resources of one rank, of several devices those of one; each method is a process of one of them.

    Attributes:
        stream: what the device computes, in order.
        queued: whoever waits for the host to come on, on whichever device.
        computing: the work of the stream that collectives wait for.
    """

    run: GraphRun
    rank: RankGraph
    processor: Processor
    loader: Loader | None
    copy: StartCopy | None
    channel: Transfer | None
    stream: list[int]
    queued: list[simpy.Event] = field(default_factory=list)
    computing: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.computing = beside_computing(self.run.graph, self.stream) if self.processor.late_s > 0 else set()

    def host(self) -> Process:
        """Let a device's host spend its time and wait, ahead of the simulation."""
        run, kinds, seconds, end = self.run, self.run.graph.kind, self.run.graph.seconds, self.run.times.end
        clock = 0.0
        for node in self.rank.host:
            kind = kinds[node]
            run.times.begin[node] = clock
            if kind is NodeKind.DELAY:
                clock += seconds[node]
            elif kind is NodeKind.LOAD:
                assert self.loader is not None
                clock = self.loader.take(clock)
            else:
                yield from run.all_ended(run.graph.after[node])
                # The clock may be ahead of what it has waited for: that had ended before the host came here.
                clock = max(clock, run.env.now)
            # An end in the simulation's future: who waits for the node sleeps until then (`_wait_queued`).
            end[node] = clock
            if self.queued:
                for event in self.queued:
                    event.succeed()
                self.queued.clear()

    def thread(self) -> Process:
        """Let the only thread of a rank do all that it does."""
        run, env, graph = self.run, self.run.env, self.run.graph
        begin, due = run.times.begin, 0.0
        for node in self.rank.host:
            kind, seconds = graph.kind[node], graph.seconds[node]
            begin[node] = env.now
            if kind is NodeKind.COMPUTE:
                yield from self.processor.work(seconds)
            elif kind is NodeKind.PACED:
                # A layer that sleeps is due so long after the one before was, not after that one ended: what DDP did
                # in between delays it only by what exceeds its sleep.
                due += seconds
                if due > env.now:
                    yield env.timeout(due - env.now)
            elif kind is NodeKind.SERVE or kind is NodeKind.LASTING:
                yield from self.processor.serve(seconds, lasting=kind is NodeKind.LASTING)
            elif kind is NodeKind.DELAY:
                yield env.timeout(seconds)
            elif kind is NodeKind.WAIT:
                yield from run.all_ended(graph.after[node])
            elif kind is NodeKind.RESUME:
                # Either a phase begins now, or the rest of it comes later by as long as the rank has waited.
                after = graph.after[node]
                due = due + env.now - run.times.end[after[0]] if after else env.now
            elif kind is NodeKind.LOAD:
                assert self.loader is not None
                ready_s = self.loader.take(env.now)
                if ready_s > env.now:
                    yield env.timeout(ready_s - env.now)
            run.mark_ended(node)

    def compute(self) -> Process:
        """Let a device's computing stream do what its host has queued, in order."""
        run, env, graph, nodes = self.run, self.run.env, self.run.graph, self.stream
        kinds, begin, end, queued = graph.kind, run.times.begin, run.times.end, graph.queued
        # Sums since the run began, noted at each event: between two events the device idled for their difference.
        idle_s = waited_s = 0.0
        place, count = 0, len(nodes)
        while place < count:
            node, came_s = nodes[place], env.now
            if end[queued[node]] > came_s:
                yield from self._wait_queued(queued[node])
            begin[node] = now = env.now
            idle_s += now - came_s
            kind = kinds[node]
            place += 1
            if kind is NodeKind.COMPUTE:
                # One event for the whole stretch; `work` writes when each part ends. No other resource waits for a
                # part: those wait for events, at which a stretch stops.
                place, seconds, parts = self._find_queued_work(place, max(now, end[queued[node]]))
                yield from self.processor.work(seconds, parts, end)
                continue
            if kind is NodeKind.WAIT:
                yield from run.all_ended(graph.after[node])
                waited_s += env.now - now
            elif kind is NodeKind.COPY:
                assert self.copy is not None
                yield self.copy(graph.copies[node])
            elif kind is NodeKind.NOT_BEFORE:
                moment_s = end[queued[node]] + graph.seconds[node]
                if moment_s > now:
                    idle_s += moment_s - now
                    yield env.timeout(moment_s - now)
            elif kind is NodeKind.EVENT:
                run.times.idled[node] = idle_s, waited_s
            run.mark_ended(node)

    def communicate(self, queue: Iterator[int]) -> Process:
        """Carry out collectives of one lane, each when it may begin and this stream is free."""
        run, env, processor = self.run, self.run.env, self.processor
        times = run.times
        for node in queue:
            collective = run.graph.collectives[node]
            # Whatever waits for the collective before goes on first, so that computation may be under way again.
            yield env.timeout(0.0)
            yield from run.all_ended(run.graph.after[node])
            # Its blocks get in when kernels of the model that are queued have left them room (`Costs.late_kernels`).
            if processor.late_s > 0 and processor.part_under_way() in self.computing:
                yield env.timeout(processor.late_s)
            times.begin[node] = env.now
            processor.collective_begins(collective)
            if self.channel is not None:
                times.wire[node] = env.now
                yield self.channel(collective)
            elif run.meets:
                yield run.meet(node)
            processor.collective_ends(collective)
            # Without communication (`comm=noop`) ranks do not meet, and bytes take no time.
            times.wire.setdefault(node, env.now)
            run.mark_ended(node)

    def copy_batches(self) -> Process:
        """Copy batches to the device, one after the other, each when its host has launched it."""
        assert self.copy is not None
        for node in self.rank.copies:
            yield from self._wait_queued(self.run.graph.queued[node])
            self.run.times.begin[node] = self.run.env.now
            yield self.copy(self.run.graph.copies[node])
            self.run.mark_ended(node)

    def _wait_queued(self, host: int) -> Process:
        """Wait until the host has come to a node, and until its end."""
        env, end = self.run.env, self.run.times.end
        # The host wakes all who wait for it at each of its nodes, so that one may have to wait again.
        while end[host] == _NEVER:
            event = env.event()
            self.queued.append(event)
            yield event
        if end[host] > env.now:
            yield env.timeout(end[host] - env.now)

    def _find_queued_work(self, place: int, now_s: float) -> tuple[int, float, list[tuple[float, int]]]:
        """Return the work that nothing holds up any more from the node before `place` on, and where each part ends."""
        graph, nodes, end = self.run.graph, self.stream, self.run.times.end
        compute, mark, not_before = NodeKind.COMPUTE, NodeKind.MARK, NodeKind.NOT_BEFORE
        kinds, lasts, queued = graph.kind, graph.seconds, graph.queued
        seconds = lasts[nodes[place - 1]]
        parts, count = [(seconds, nodes[place - 1])], len(nodes)
        while place < count:
            node = nodes[place]
            kind, queued_s = kinds[node], end[queued[node]]
            # What the host queues only later may still be held up; what is queued by now runs back to back.
            if queued_s > now_s:
                break
            if kind is compute:
                seconds += lasts[node]
            elif kind is not mark and (kind is not not_before or queued_s + lasts[node] > now_s):
                break
            parts.append((seconds, node))
            place += 1
        return place, seconds, parts


def report(run: GraphRun, rank: RankGraph, progress: Progress) -> None:
    """Call `progress` whenever an iteration of `rank` ends."""
    total = len(rank.iterations)
    done = iter(range(1, total + 1))

    def ended(_: simpy.Event) -> None:
        progress(next(done), total)

    for nodes in rank.iterations:
        run.event(nodes.end).callbacks.append(ended)
