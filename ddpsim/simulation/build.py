"""Builds the graph of one rank's training: forward, backward and optimizer of each iteration, and their messages.

What is launched where is asked of the queue that an executor asks too (`Launches`): a gradient or a point is announced
to it, and what it lets go is written behind.

Start at `IterationBuilder.build`, an iteration from its batch to its optimizer. A CPU's thread and a GPU with its host
differ most in backward: `_backward_on_thread` is the plain one, `_backward_on_device` has the same and its shortcuts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial

from ddpsim.common.operation import Operation
from ddpsim.schedules.points import BACKWARD_END, Point, PointKind
from ddpsim.schedules.schedule import Pass
from ddpsim.simulation.ddp_costs import KERNELS
from ddpsim.simulation.graph import Cause, IterationNodes, NodeKind, StepGraph
from ddpsim.simulation.jobs.updates import ForwardWait
from ddpsim.simulation.phases import DeviceTurns, OptimizerBuilder, PreForwardBuilder
from ddpsim.simulation.rank_builder import RankBuilder
from ddpsim.simulation.rank_config import ForwardStop, Launches, RankConfiguration, Scheduled
from ddpsim.workload.devices import DevicePart
from ddpsim.workload.iteration_profile import IterationProfile
from ddpsim.workload.layer_messages import LayerMessage

RUN_AHEAD = 2
"""Iterations that are launched and not over, at most: of small models the launch queue holds many, and no step changes
with more than two."""

BITMAP_BYTES = 4
"""torch's used-parameter bitmap is int32."""


def build_rank(graph: StepGraph, rank_config: RankConfiguration, number: int, lanes: int) -> None:
    """Add to `graph` all iterations of rank `number`."""
    first = len(graph.kind)
    to = RankBuilder(graph, rank_config.execution, rank_config.costs, rank_config.enter_s, number, lanes)
    IterationBuilder(to, rank_config).build()
    to.rank.nodes = range(first, len(graph.kind))


class IterationBuilder:
    """Writes the iterations of one rank.

    Args:
        to: the rank's resources.
        rank_config: what the rank runs.
    """

    def __init__(self, to: RankBuilder, rank_config: RankConfiguration) -> None:
        self._to, self._rank_config = to, rank_config
        self._stages = {each.stage: each for each in rank_config.part.stages}
        layers = {stage: rank_config.layers_of(each) for stage, each in self._stages.items()}
        self._layers = {stage: {} if each is None else each.backward for stage, each in layers.items()}
        self._device = not to.one_thread
        self._backward = self._backward_on_device if self._device else self._backward_on_thread
        self._before = PreForwardBuilder(to, rank_config)
        self._stops: dict[int, Sequence[ForwardStop]] = {}
        self._owes_update = False
        self._turns = DeviceTurns(to, rank_config.workload.devices)

    def build(self) -> None:
        """Write all iterations."""
        to, rank, rank_config = self._to, self._to.rank, self._rank_config
        ends, launches = list[int](), None
        for index in range(rank_config.iterations):
            if self._device and index >= RUN_AHEAD:
                to.on_host(NodeKind.WAIT, after=(ends[index - RUN_AHEAD],))
            # Gradients are added and the optimizer runs once a cycle, with DDP or without.
            cycle = rank_config.options.accumulate
            adds, stepped = index % cycle != 0, (index + 1) % cycle == 0
            nodes = IterationNodes(index, to.event(), rank_config.is_synced(index), adds, stepped)
            if rank.iterations:
                rank.iterations[-1].end = nodes.start
            rank.iterations.append(nodes)
            before, launches = launches, rank_config.launches(index, launches)
            if launches is not before:
                stops = partial(rank_config.forward_stops, launches.scheduled)
                self._stops = {stage: stops(each) for stage, each in self._stages.items()}
            to.graph.writing = Cause.INPUT
            self._before.take_batch(nodes)
            to.graph.writing = Cause.DDP
            self._before.confer(nodes)
            self._before.broadcast(nodes)
            to.graph.writing = Cause.FORWARD
            to.launch_all(nodes, launches.begin())
            self._compute(nodes, launches)
            to.graph.writing = Cause.DDP
            self._finish(nodes, launches)
            to.graph.writing = Cause.OPTIMIZER
            # Where no update follows backward, the next forward makes them.
            OptimizerBuilder(to, rank_config, nodes, launches).add_after_backward()
            self._owes_update = stepped and not launches.scheduled.updates
            if self._device:
                ends.append(to.event())
        rank.last = to.event()
        if rank.iterations:
            rank.iterations[-1].end = rank.last
        self._turns.join()

    def _compute(self, nodes: IterationNodes, launches: Launches) -> None:
        """Write all passes in order, with what they wait for and send: the first begins with the iteration."""
        to, rank_config, begun, sent = self._to, self._rank_config, nodes.start, tuple[int, ...]()
        whole, lanes = rank_config.pace(nodes.index), launches.scheduled.lanes
        for number, each in enumerate(launches.scheduled.schedule.passes):
            forward = each.kind == "forward"
            to.graph.writing = Cause.FORWARD if forward else Cause.BACKWARD
            if number:
                begun = to.event()
            if each.receives is not None:
                # It goes when this rank has come here, and the wait is for what this one has sent, too.
                together = sent if "received" in each.settles else ()
                before = None if forward else 0
                message = LayerMessage(each.size_bytes, 0.0, 0.0, before, Operation.SENDRECV)
                to.layer_waits(nodes, message, lanes.index(each.receives), together)
                sent = () if together else sent
            pace = rank_config.part.pace_of(each.stage, whole)
            (self._forward if forward else self._backward)(nodes, launches, each, pace, begun)
            if "computed" in each.settles:
                to.wait_for(sent)
                sent = ()
            if each.sends is not None:
                sent = (*sent, to.send(each.size_bytes, lanes.index(each.sends)))
            if "sent" in each.settles:
                to.wait_for(sent)

    def _forward(
        self, nodes: IterationNodes, launches: Launches, pass_: Pass, pace: IterationProfile, begun: int
    ) -> None:
        to, rank_config = self._to, self._rank_config
        if not self._device:
            to.begin_phase()
        # Stops are at shares of the whole forward, ascending: what lies between two of them is the difference.
        host, work = 0.0, 0.0
        self._turns.begin("forward", begun)
        for host_share, work_share, stop in self._stops[pass_.stage]:
            self._compute_forward(nodes, pace, host_share - host, work_share - work)
            if isinstance(stop, ForwardWait):
                self._stop(nodes, launches, stop)
            elif isinstance(stop, DevicePart):
                sent_from, free = self._turns.hand_over(nodes, to.current + 1)
                if rank_config.ddp:
                    # The other device may still wait for messages, or copy out what they brought.
                    nodes.forward.append((begun, sent_from))
                    nodes.exposed.append(free)
                    begun = free
            else:
                to.layer_waits(nodes, stop, launches.scheduled.layers_lane)
            host, work = host_share, work_share
        # Its stops have made all updates that the step before left; a second micro-batch's forward makes none.
        self._owes_update = False
        self._compute_forward(nodes, pace, 1.0 - host, 1.0 - work)
        if self._device:
            to.host(rank_config.forward_host_s(nodes.index))
            nodes.forward.append((begun, to.event()))
            self._turns.end(nodes)
            to.enqueue(KERNELS / 2 * len(pace.order))
            if "after_forward" in rank_config.workload.synchronises:
                to.synchronise()
        elif (cost_s := rank_config.forward_host_s(nodes.index)) > 0:
            to.on_host(NodeKind.DELAY, cost_s)

    def _compute_forward(self, nodes: IterationNodes, pace: IterationProfile, host: float, work: float) -> None:
        """Compute these shares of forward, on the host and on the device."""
        to = self._to
        if self._device:
            to.device(pace.forward_work * work)
            to.host(pace.forward_host * host)
            return
        begun = to.mark()
        to.compute(pace.forward_host * host)
        nodes.forward.append((begun, to.mark()))

    def _stop(self, nodes: IterationNodes, launches: Launches, stop: ForwardWait) -> None:
        """Wait for what forward needs from here on, let the optimizer make it, and launch what comes then."""
        to = self._to
        since = to.mark()
        optimizer = OptimizerBuilder(to, self._rank_config, nodes, launches)
        for update in stop.updates if self._owes_update else ():
            to.take_in(nodes, launches.take_waits(*update.before))
            optimizer.add_before_use(update)
        to.take_in(nodes, launches.take_waits(*stop.points))
        to.resume(since)
        nodes.held_up.append((since, to.mark()))
        to.launch_all(nodes, launches.mark_passed(*stop.points))

    def _layers_wait(
        self, nodes: IterationNodes, messages: Sequence[LayerMessage], lane: int | None, host_s: float, work_s: float
    ) -> tuple[float, float]:
        """Compute a gradient until the last of the messages in it, and wait for each; return what is left of both."""
        to, host, work = self._to, 0.0, 0.0
        for message in messages:
            if self._device:
                to.device(work_s * (message.device - work))
                to.host(host_s * (message.host - host))
            else:
                begun = to.mark()
                to.compute(host_s * (message.device - work))
                nodes.backward.append((begun, to.mark()))
            to.layer_waits(nodes, message, lane)
            host, work = message.host, message.device
        return host_s * (1.0 - (host if self._device else work)), work_s * (1.0 - work)

    def _hooked(
        self, nodes: IterationNodes, scheduled: Scheduled, pass_: Pass
    ) -> tuple[Collection[int], Collection[int]]:
        """Return which gradients hooks copy into messages, and which do not come.

        Gradients are announced in iterations that reduce none too, for a schedule may send something in each; of the
        passes of a stage only in the last, before which no gradient is whole.
        """
        rank_config = self._rank_config
        unused = rank_config.find_unused(rank_config.pace(nodes.index), nodes.index) if pass_.last else ()
        return scheduled.filled if nodes.synced and pass_.last else (), unused

    def _backward_on_thread(
        self, nodes: IterationNodes, launches: Launches, pass_: Pass, pace: IterationProfile, begun: int
    ) -> None:
        to, rank_config = self._to, self._rank_config
        scheduled, adds, layers = launches.scheduled, nodes.adds or pass_.number > 0, self._layers[pass_.stage]
        needed, lane = scheduled.needed, scheduled.layers_lane
        filled, unused = self._hooked(nodes, scheduled, pass_)
        to.begin_phase()
        # In the order in which gradients come. Each is computed, added to those of earlier micro-batches, copied into
        # its bucket by DDP's hook, and announced, by which its bucket may be complete.
        for parameter, host_s in zip(pace.order, pace.host.tolist(), strict=True):
            if parameter in needed:
                point, since = Point(PointKind.BACKWARD, parameter), to.mark()
                to.take_in(nodes, launches.take_waits(point))
                to.resume(since)
                to.launch_all(nodes, launches.mark_passed(point))
            if messages := layers.get(parameter):
                host_s, _ = self._layers_wait(nodes, messages, lane, host_s, host_s)
            begun = to.mark()
            to.compute(host_s)
            if adds:
                to.serve(rank_config.add_s(parameter))
            ready = to.mark()
            nodes.backward.append((begun, ready))
            if pass_.last:
                nodes.gradients.append((parameter, ready, ready))
            if parameter in filled:
                to.serve(rank_config.costs.hook_s + rank_config.copies_s[parameter])
            if pass_.last:
                to.launch_all(nodes, launches.gradient(parameter, unused))
                # Parameters without a gradient are announced once, before the first one: `Reducer::autograd_hook`.
                unused = ()
        begun = to.mark()
        to.compute(pace.tail_host)
        nodes.backward.append((begun, to.mark()))

    def _backward_on_device(
        self, nodes: IterationNodes, launches: Launches, pass_: Pass, pace: IterationProfile, begun: int
    ) -> None:
        to, rank_config = self._to, self._rank_config
        scheduled, adds, layers = launches.scheduled, nodes.adds or pass_.number > 0, self._layers[pass_.stage]
        needed, lane = scheduled.needed, scheduled.layers_lane
        filled, unused = self._hooked(nodes, scheduled, pass_)
        nodes.idle_s += pace.idle_s if rank_config.ddp else math.inf
        self._turns.begin("backward", begun)
        devices = rank_config.devices
        hook_s, queued, owed_s, copied_s = rank_config.costs.hook_s, to.graph.queued, 0.0, 0.0
        # `owed_s` is the hook of the gradient before: the host runs it when it has launched that one's kernels, so that
        # it delays the launch of the next.
        gradients = zip(pace.order, pace.host.tolist(), pace.work.tolist(), pace.lag.tolist(), strict=True)
        for parameter, host_s, work_s, lag_s in gradients:
            if devices[parameter] != to.current:
                begun = self._turns.go_back(nodes, devices[parameter], begun)
            if parameter in needed:
                point = Point(PointKind.BACKWARD, parameter)
                to.take_in(nodes, launches.take_waits(point))
                to.launch_all(nodes, launches.mark_passed(point))
            if messages := layers.get(parameter):
                host_s, work_s = self._layers_wait(nodes, messages, lane, host_s, work_s)
            fills = parameter in filled
            copy_s = rank_config.copies_s[parameter] if fills else 0.0
            # Most gradients are one launch, one completion and one copy, written in one go; below, the same node by
            # node, with what may come between.
            plain = (host_s > 0 or owed_s > 0) and lag_s <= 0 and not adds
            if plain and to.fits(KERNELS + fills):
                ready = to.gradient(work_s, host_s, owed_s, copy_s)
            else:
                to.device(work_s)
                to.host(host_s + (owed_s + hook_s if adds else owed_s))
                if lag_s > 0:
                    # As recorded, it completes no sooner than that long after its hook.
                    to.add_on_stream(NodeKind.NOT_BEFORE, lag_s)
                if adds:
                    to.copies(rank_config.add_s(parameter))
                ready = to.mark()
                to.enqueue(KERNELS)
                if fills:
                    to.copies(copy_s)
                    to.enqueue(1)
            if pass_.last:
                nodes.gradients.append((parameter, queued[ready], ready))
            owed_s = hook_s if fills else 0.0
            copied_s += float(copy_s)
            for message in launches.gradient(parameter, unused) if pass_.last else ():
                to.launch(nodes, message, owed_s)
                owed_s = 0.0
                copied_s += float(message.encoding.encode_s)
            unused = ()
        # On the stream, and none of the model's computing: a trace takes it off backward.
        nodes.copied_s += copied_s
        if to.current != 0:
            begun = self._turns.go_back(nodes, 0, begun)
        to.device(pace.tail_work)
        to.host(owed_s + pace.tail_host)
        nodes.backward.append((begun, to.event()))
        self._turns.end(nodes)

    def _finish(self, nodes: IterationNodes, launches: Launches) -> None:
        """Wait for what the end of backward waits for, and launch what comes after it.

        On a device the bitmap of unused parameters is read where some rank may have had no gradient.
        """
        to, rank_config = self._to, self._rank_config
        waited, bitmap = to.outstanding(launches.take_waits(BACKWARD_END)), None
        costs, searched = rank_config.costs, rank_config.options.find_unused_parameters
        if waited and searched:
            bitmap = to.send(BITMAP_BYTES * len(rank_config.workload.parameters), None, Operation.ALLREDUCE)
        missing: frozenset[int] = frozenset()
        if bitmap is not None and self._device:
            pace = rank_config.pace(nodes.index)
            missing = pace.missed.union(rank_config.find_unused(pace, nodes.index))
        for sent in waited:
            if self._device:
                to.host(costs.finish_s)
            if bitmap is not None and not missing.isdisjoint(sent.planned.parameters):
                # torch reads the reduced bitmap there, on the host, to leave what no rank used as it is.
                to.expose(nodes, bitmap)
                bitmap = None
                to.synchronise()
            to.write_back(nodes, sent)
        if bitmap is not None:
            to.expose(nodes, bitmap)
        to.launch_all(nodes, launches.mark_passed(BACKWARD_END))
        if self._device and "after_backward" in rank_config.workload.synchronises:
            to.synchronise()
