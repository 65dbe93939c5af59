"""Writes what one rank does into a graph: work of host and device, messages, and waits for them.

A rank on a CPU, and one whose layers sleep, does all on one thread; a GPU has a host that launches and a stream that
follows. Callers say what is done, here stands on which resource: each method appends nodes where the program has come
to. `launch` and `_send` are a message's life, the rest is work and waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from ddpsim.common.operation import Operation
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.graph import (
    ORIGIN,
    Cause,
    Collective,
    Copy,
    ExecutionModel,
    IterationNodes,
    LayerNodes,
    MessageNodes,
    NodeKind,
    PlannedMessage,
    RankGraph,
    StepGraph,
)
from ddpsim.simulation.linear import Linear
from ddpsim.workload.layer_messages import LayerMessage

QUEUED = 1024
"""Kernels of a stream that have been launched and not begun, at most: the next launch returns when one of them begins.
Source: forums.developer.nvidia.com/t/68937: launches in a loop take as long as kernels after about a thousand."""

AT_ONCE = 64
"""Kernels between two looks at the queue; chosen by hand, a sixteenth of it."""

_GRADIENT = (NodeKind.DELAY, NodeKind.MARK, NodeKind.COMPUTE)
_AFTER_NOTHING: tuple[tuple[int, ...], ...] = ((), (), ())


class RankBuilder:
    """Appends nodes to the resources of one rank, in the order of its program.

    Args:
        graph: of all ranks; gets one more.
        execution: on which resources the rank's work is.
        costs: of DDP.
        enter_s: what the start of a collective takes from the computation beside it.
        number: of the rank.
        lanes: how many process groups, or groups and streams, it has; each of several devices has one.
    """

    def __init__(
        self, graph: StepGraph, execution: ExecutionModel, costs: Costs, enter_s: float, number: int, lanes: int
    ) -> None:
        self.graph, self._costs, self._enter_s = graph, costs, enter_s
        self.one_thread, self.sleeps, devices = execution.one_thread, execution.sleeps, execution.devices
        lists: list[list[int]] = [[] for _ in range(max(lanes, len(devices)))]
        self.rank = RankGraph(number, self.one_thread, lists, streams=[[] for _ in devices])
        self.current, self.stream = 0, self.rank.compute
        graph.ranks.append(self.rank)
        self._sent: dict[int, MessageNodes] = {}
        self._host, self._turn = ORIGIN, 0
        self._last_copies: dict[str, int] = {}
        self._launched = [0.0 for _ in devices]
        self._begun: list[deque[tuple[float, int]]] = [deque() for _ in devices]
        # Launched and beside no computing yet, by the node of their end: the device, and how many collectives they are.
        self._entering: dict[int, tuple[int, int]] = {}

    # Host and device.

    def on_device(self, number: int) -> None:
        """Let what follows be of another device of the rank."""
        if number != self.current:
            self.current, self.stream = number, self.rank.streams[number]

    def host(self, seconds: float) -> None:
        """Let the host of a device spend `seconds`; one node has what nothing was queued between."""
        kinds, host = self.graph.kind, self._host
        if host == len(kinds) - 1 and kinds[host] is NodeKind.DELAY:
            self.graph.lengthen(host, seconds)
        elif seconds > 0:
            self.on_host(NodeKind.DELAY, seconds)

    def on_host(self, kind: NodeKind, seconds: float = 0.0, after: tuple[int, ...] = ()) -> int:
        """Let the host of a device, or the only thread of a rank, do something; return the node."""
        self._host = self.graph.add(kind, seconds, ORIGIN, after)
        if kind is NodeKind.DELAY:
            self.graph.cause[self._host] = Cause.HOST
        self.rank.host.append(self._host)
        return self._host

    def synchronise(self) -> None:
        """Let the host wait for all that its device has been given."""
        self.on_host(NodeKind.WAIT, after=(self.event(),))

    def enqueue(self, kernels: float) -> None:
        """Count kernels that the host launches here, and let it wait where the device's launch queue is full."""
        here, begun = self.current, self._begun[self.current]
        self._launched[here] += kernels
        if begun and self._launched[here] - begun[-1][0] < AT_ONCE:
            return
        begun.append((self._launched[here], self.event()))
        while self._launched[here] - begun[0][0] >= QUEUED:
            self.on_host(NodeKind.WAIT, after=(begun.popleft()[1],))

    def fits(self, kernels: float) -> bool:
        """Whether the host launches so many kernels before it looks at the queue again; it counts them then.

        Not where collectives enter beside them.
        """
        here, begun = self.current, self._begun[self.current]
        if not begun or self._launched[here] + kernels - begun[-1][0] >= AT_ONCE or self._entering:
            return False
        self._launched[here] += kernels
        return True

    def device(self, seconds: float) -> None:
        """Let the computing stream work for `seconds`."""
        if seconds > 0:
            self.add_on_stream(NodeKind.COMPUTE, seconds)
            if self._entering:
                # The kernel that collectives come upon; one that is waited for before any computing takes nothing.
                entering = [done for done, (device, _) in self._entering.items() if device == self.current]
                self.copies(sum(self._entering.pop(done)[1] for done in entering) * self._enter_s)

    def gradient(self, work_s: float, host_s: float, owed_s: float, copy_s: float) -> int:
        """Let the device work and its host launch that, then the device copy the gradient; return where that was there.

        It adds what `device`, `host`, `mark` and `copies` would, in one go: most nodes of a step are these.

        Args:
            work_s: nothing where it came with the gradient before it.
            host_s, owed_s: what the host takes, and what it has to do before; more than nothing together.
            copy_s: nothing where it is not copied.
        """
        graph, compute, writing = self.graph, self.stream, self.graph.writing
        # Numbers follow from how many nodes there are: [kernels,] launch, completion[, copy]. The kernels run behind
        # what the host did before; completion and copy wait for this launch, for the hook is called when it is over.
        launched = len(graph.kind)
        if work_s > 0:
            graph.kind.append(NodeKind.COMPUTE)
            graph.seconds.append(work_s)
            graph.queued.append(self._host)
            graph.after.append(())
            graph.cause.append(writing)
            compute.append(launched)
            launched += 1
        if isinstance(owed_s, Linear):
            graph.terms[launched] = owed_s.terms
        ready, count = launched + 1, 2
        if copy_s > 0:
            if isinstance(copy_s, Linear):
                graph.terms[ready + 1] = copy_s.terms
            count = 3
        graph.kind.extend(_GRADIENT[:count])
        graph.seconds.extend((host_s + float(owed_s), 0.0, float(copy_s))[:count])
        graph.queued.extend((ORIGIN, launched, launched)[:count])
        graph.after.extend(_AFTER_NOTHING[:count])
        graph.cause.extend((Cause.HOST, writing, Cause.DDP)[:count])
        compute.extend(range(ready, launched + count))
        self.rank.host.append(launched)
        self._host = launched
        return ready

    def copies(self, seconds: float) -> None:
        """Let the computing stream work for `seconds` on DDP's behalf: copies, codecs, what a collective takes."""
        if seconds > 0:
            self.graph.cause[self.add_on_stream(NodeKind.COMPUTE, seconds)] = Cause.DDP

    def add_on_stream(self, kind: NodeKind, seconds: float = 0.0, after: tuple[int, ...] = ()) -> int:
        """Queue a node on the computing stream, as of now on the host."""
        node = self.graph.add(kind, seconds, self._host, after)
        self.stream.append(node)
        return node

    def copy(self, copied: Copy, queue: list[int]) -> int:
        """Queue a copy, as of now on the host, on a computing stream or on the copy engine."""
        node = self.graph.add(NodeKind.COPY, 0.0, self._host)
        self.graph.copies[node] = copied
        queue.append(node)
        return node

    def begin_phase(self) -> int:
        """Let layers that sleep count from now on; return the node that has just ended."""
        if self.sleeps:
            self.on_host(NodeKind.RESUME)
        return self._host

    def resume(self, since: int) -> None:
        """Let what is left of a phase of sleeping layers come later, by what has passed since the end of `since`."""
        if self.sleeps:
            self.on_host(NodeKind.RESUME, after=(since,))

    def compute(self, seconds: float) -> None:
        """Let the only thread of a rank compute, or sleep as its layers do."""
        if self.sleeps:
            self.on_host(NodeKind.PACED, seconds)
        elif seconds > 0:
            self.on_host(NodeKind.COMPUTE, seconds)

    def serve(self, seconds: float, *, lasting: bool = False) -> None:
        """Let the only thread of a rank work for DDP."""
        if seconds > 0:
            self.graph.cause[self.on_host(NodeKind.LASTING if lasting else NodeKind.SERVE, seconds)] = Cause.DDP

    def mark(self) -> int:
        """Return a node whose end is this place of the program: on the stream of a device, else on the thread.

        It is there to be read in a trace. On a device it is part of a stretch of work, whose parts' ends are written
        when the stretch is over, so that nothing may wait for it: that takes an `event`.
        """
        return self._host if self.one_thread else self.add_on_stream(NodeKind.MARK)

    def event(self) -> int:
        """Return a node whose end is this place of the program, and for which others may wait."""
        return self._host if self.one_thread else self.add_on_stream(NodeKind.EVENT)

    # Messages.

    def collective(
        self,
        size_bytes: int,
        after: tuple[int, ...],
        operation: Operation | Literal["buffers"] = Operation.ALLREDUCE,
        lane: int | None = None,
    ) -> int:
        """Launch a collective now, which begins when `after` have ended; return its node.

        Args:
            lane: its number; None is the one whose turn it is, of several devices the current one's.
        """
        if lane is None:
            lane, self._turn = self._turn, (self._turn + 1) % len(self.rank.lanes)
            lane = lane if len(self.rank.streams) == 1 else self.current
        nodes = self.rank.lanes[lane]
        node = self.graph.add(NodeKind.COLLECTIVE, 0.0, self._host, after)
        self.graph.collectives[node] = Collective(size_bytes, operation, lane, len(nodes))
        nodes.append(node)
        return node

    def launch_all(self, iteration: IterationNodes, planned: Iterable[PlannedMessage]) -> None:
        """Launch messages, in order."""
        for message in planned:
            self.launch(iteration, message)

    def launch(self, iteration: IterationNodes, message: PlannedMessage, owed_s: float = 0.0) -> None:
        """Launch a message, once the host has waited for what it must; it waits for the end of what blocks it.

        Args:
            owed_s: what the host of a device has to do before.
        """
        if message.device != self.current:
            here = self.current
            self.on_device(message.device)
            self.launch(iteration, message, owed_s)
            self.on_device(here)
            return
        # What it comes after may not have been sent yet: in the first iteration, or where not every one sends it.
        before = [self._sent[number].done for number in message.after if number in self._sent]
        if message.host_awaits:
            for done in before:
                if self.one_thread:
                    self.expose(iteration, done)
                else:
                    # It is over before any later kernel begins, which it cannot come upon any more.
                    self._entering.pop(done, None)
                    self.on_host(NodeKind.WAIT, after=(done,))
            before = []
        encoding, costs = message.encoding, self._costs
        fill_s = message.fill_s + encoding.encode_s
        if self.one_thread:
            ready = self._host
            self.serve(fill_s + costs.launch_s)
            filled = self._host
        else:
            # The collective's stream waits for an event on the computing one, as torch records it before each launch.
            self.host(owed_s + encoding.host_s + len(encoding.messages) * costs.launch_s)
            ready = filled = self.event()
            if fill_s > 0:
                self.copies(fill_s)
                filled = self.event()
        self._send(iteration, message, ready, (filled, *before))
        # Its start takes something of the next kernel, which is not written yet: `device` charges it there.
        if not self.one_thread and self._enter_s > 0:
            self._entering[self._sent[message.number].done] = self.current, len(encoding.messages)
        if not message.blocking:
            return
        self.take_in(iteration, [message])
        if self.one_thread:
            self.resume(ready)
        else:
            self.on_host(NodeKind.WAIT, after=(self._sent[message.number].done,))

    def layer_waits(
        self, iteration: IterationNodes, message: LayerMessage, lane: int | None, also: tuple[int, ...] = ()
    ) -> None:
        """Send a message that the computation waits for, on a lane of its own.

        Args:
            message: in forward where no gradient comes after it.
            also: messages that it waits for at the same place.
        """
        since = self._host
        sent = self.send(message.size_bytes, lane, message.operation)
        begun = since if self.one_thread else self.mark()
        self._wait(sent, *also)
        self.resume(since)
        iteration.layers.append(LayerNodes(sent, begun, self.mark(), message.before is None))

    def send(self, size_bytes: int, lane: int | None, operation: Operation = Operation.SENDRECV) -> int:
        """Let the host launch a message, which goes once all that came before is done; return it."""
        if self.one_thread:
            self.on_host(NodeKind.DELAY, self._costs.launch_s)
        else:
            self.host(self._costs.launch_s)
        return self.collective(size_bytes, (self.event(),), operation, lane)

    def wait_for(self, sent: tuple[int, ...]) -> None:
        """Compute on when messages have ended."""
        if sent:
            since = self._host
            self._wait(*sent)
            self.resume(since)

    def outstanding(self, planned: Iterable[PlannedMessage]) -> list[MessageNodes]:
        """Return those of `planned` that have been launched and not been waited for, as they are from now on."""
        launched = [sent for message in planned if not (sent := self._sent[message.number]).awaited]
        for sent in launched:
            sent.awaited = True
        return launched

    def take_in(self, iteration: IterationNodes, planned: Iterable[PlannedMessage]) -> None:
        """Wait for those of `planned` that have not been waited for, and copy out what they brought."""
        for sent in self.outstanding(planned):
            if not self.one_thread:
                self.host(self._costs.finish_s)
            self.write_back(iteration, sent)

    def write_back(self, iteration: IterationNodes, sent: MessageNodes) -> None:
        """Wait for a message where it was sent, and copy out what it brought."""
        here = self.current
        self.on_device(sent.planned.device)
        self.expose(iteration, sent.done)
        if self.one_thread:
            self.serve(self._costs.finish_s + sent.planned.write_back_s, lasting=True)
        else:
            self.copies(sent.planned.write_back_s)
        sent.written = self.mark()
        self.on_device(here)

    def expose(self, iteration: IterationNodes, done: int) -> None:
        """Wait where it counts as exposed: on the stream of a device, the first of several, else on the thread."""
        node = self._wait(done)
        if self.current == 0:
            iteration.exposed.append(node)

    def _wait(self, *after: int) -> int:
        """Let the device, or the only thread, go on when nodes have ended."""
        for node in after:
            self._entering.pop(node, None)
        return (self.on_host if self.one_thread else self.add_on_stream)(NodeKind.WAIT, after=after)

    def add_delay(self, after: tuple[int, ...], seconds: float, cause: Cause = Cause.DDP) -> int:
        """Return a node that ends `seconds` after all of `after`, of which there is one where that is no time."""
        if seconds <= 0 and len(after) == 1:
            return after[0]
        node = self.graph.add(NodeKind.DELAY, seconds, ORIGIN, after)
        self.graph.cause[node] = cause
        self.rank.delays.append(node)
        return node

    def _copy_between(self, way: str, after: tuple[int, ...], seconds: float) -> int:
        """Have a copy engine, which does one copy after the other each way, copy once `after` has ended."""
        before = self._last_copies.get(way)
        copied = self.add_delay(after if before is None else (*after, before), seconds, Cause.OTHER)
        self._last_copies[way] = copied
        return copied

    def _send(self, iteration: IterationNodes, message: PlannedMessage, ready: int, after: tuple[int, ...]) -> None:
        encoding = message.encoding
        if message.from_host_s > 0:
            after = (self._copy_between("from host", after, message.from_host_s),)
        if message.to_host_s > 0 and (copied := self._last_copies.get("to host")) is not None:
            after = (*after, copied)
        if message.delay_s > 0:
            after = (self.add_delay(after, message.delay_s, Cause.OTHER),)
        nodes: list[int] = []
        for pause_s, size_bytes in encoding.messages:
            if nodes:
                after = (self.add_delay((nodes[-1],), pause_s),)
            nodes.append(self.collective(size_bytes, after, message.operation, message.lane))
        done = self.add_delay((nodes[-1],), encoding.decode_s)
        if message.to_host_s > 0:
            done = self._copy_between("to host", (done,), message.to_host_s)
        sent = MessageNodes(message, ready, self._host, nodes[0], nodes[-1], done)
        self._sent[message.number] = sent
        iteration.messages.append(sent)
