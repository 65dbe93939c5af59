"""Builds what an iteration does around forward and backward: batches, buffers, turns of devices, the optimizer.

In the order of an iteration: `PreForwardBuilder`, then, behind backward or under the next forward, `OptimizerBuilder`.
`DeviceTurns` passes forward and backward from device to device of a rank that has several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.common.operation import Operation
from ddpsim.simulation.graph import BATCH, BUFFERS, BUFFERS_PART, Cause, Copy, IterationNodes, NodeKind
from ddpsim.simulation.jobs.updates import OptimizerUpdate
from ddpsim.simulation.linear import Linear
from ddpsim.simulation.rank_builder import RankBuilder
from ddpsim.simulation.rank_config import Launches, RankConfiguration
from ddpsim.workload.devices import DevicePart, buffer_devices

TIME_BYTES = 8
"""An expected time travels as a float64."""


class PreForwardBuilder:
    """Writes what precedes the forward of each iteration of one rank.

    Args:
        to: the rank's resources.
        rank_config: what the rank runs.
    """

    def __init__(self, to: RankBuilder, rank_config: RankConfiguration) -> None:
        self._to, self._rank_config = to, rank_config
        self._device = not to.one_thread
        self._batch: int | None = None
        self._buffer_bytes = _find_buffer_bytes(rank_config)

    def take_batch(self, nodes: IterationNodes) -> None:
        """Have the batch on the device; where the stage is pipelined, load the next one and copy it meanwhile."""
        to, stage = self._to, self._rank_config.input_stage
        if stage is None:
            return
        if not self._device:
            begun = to.begin_phase()
            if stage.loaders == 0:
                to.compute(stage.load_s)
            else:
                to.on_host(NodeKind.LOAD)
            nodes.input = (begun, to.mark())
            return
        if stage.pipelined:
            batch = self._fetch_batch() if self._batch is None else self._batch
            to.add_on_stream(NodeKind.WAIT, after=(batch,))
            self._batch = self._fetch_batch()
        else:
            to.on_host(NodeKind.LOAD)
            if stage.copy_bytes > 0:
                to.copy(BATCH, to.stream)
                if not stage.queued:
                    to.synchronise()
        nodes.input = (nodes.start, to.event())

    def _fetch_batch(self) -> int:
        """Load a batch on the host and launch its copy; return the copy."""
        self._to.on_host(NodeKind.LOAD)
        return self._to.copy(BATCH, self._to.rank.copies)

    def confer(self, nodes: IterationNodes) -> None:
        """Exchange what ranks expect of the order of gradients; the host reads it, and builds buckets where it says.

        Rank 0 tells the others where its word is law; else every rank tells every other. The executor does it so
        (`ddpexec.ddp.bucket_schedule`).
        """
        to, rank_config = self._to, self._rank_config
        held, options, costs = rank_config.plans.held.get(nodes.index), rank_config.options, rank_config.costs
        if held is None:
            return
        everybody = options.consensus != "rank0" or options.find_unused_parameters
        count, receivers = len(held.decision.expected), rank_config.ranks if everybody else 1
        begun, host_s = to.event(), count * (costs.expect_s + costs.agree_s * receivers) + costs.launch_s
        rebuild_s = 0.0 if held.decision.order is None else count * costs.rebuild_s
        operation = Operation.ALL_GATHER if everybody else Operation.BROADCAST
        to.host(host_s) if self._device else to.serve(host_s)
        launched = to.collective(TIME_BYTES * count * receivers, (to.event(),), operation, 0)
        if self._device:
            to.add_on_stream(NodeKind.WAIT, after=(launched,))
            to.synchronise()
            to.host(rebuild_s)
            to.add_on_stream(NodeKind.NOT_BEFORE)
        else:
            to.on_host(NodeKind.WAIT, after=(launched,))
            to.serve(rebuild_s)
        nodes.held_up.append((begun, to.event()))

    def broadcast(self, nodes: IterationNodes) -> None:
        """Let rank 0's buffers be everybody's, where the iteration before was synced."""
        to, rank_config = self._to, self._rank_config
        if not self._buffer_bytes or (nodes.index > 0 and not rank_config.is_synced(nodes.index - 1)):
            return
        costs, count, sizes_of = rank_config.costs, len(rank_config.workload.buffers), self._buffer_bytes
        flattened_s, launch_s = _price_apart(count * costs.buffer_s), _price_apart(costs.launch_s)
        copies_s = _price_apart(costs.copies_s(count, sum(map(sum, sizes_of.values()))))
        lane = rank_config.scheduled(nodes.index).buffers_lane
        # torch's `_sync_buffers` flattens the buffers of a dtype, broadcasts each and copies them back before forward
        # goes on: on a device the stream waits for each, a thread for all of them together.
        if self._device:
            to.host(flattened_s)
            whole = sum(map(sum, sizes_of.values()))
            for device, sizes in sizes_of.items():
                share = sum(sizes) / whole if whole else 1.0
                to.on_device(device)
                to.copies(copies_s * share)
                for size in sizes:
                    to.host(launch_s)
                    launched = to.collective(size, (to.event(),), BUFFERS, lane)
                    to.add_on_stream(NodeKind.WAIT, after=(launched,))
                to.copies(copies_s * share)
            to.on_device(0)
            begun = nodes.start if nodes.input is None else nodes.input[1]
            if nodes.held_up:
                # What ranks conferred on before has its own interval.
                begun = nodes.held_up[-1][1]
        else:
            begun = to.mark()
            to.on_host(NodeKind.DELAY, flattened_s)
            waits = []
            for size in sizes_of[0]:
                delayed = to.on_host(NodeKind.DELAY, launch_s)
                waits.append(to.collective(size, (delayed,), BUFFERS, lane))
            to.on_host(NodeKind.WAIT, after=tuple(waits))
        nodes.broadcast.append((begun, to.event()))


def _find_buffer_bytes(rank_config: RankConfiguration) -> dict[int, list[int]]:
    """Return the messages of a broadcast by device, of which torch makes one a dtype; none where nothing is sent."""
    own, options, schedule = rank_config.workload, rank_config.options, rank_config.scheduled(0).schedule
    wanted = options.broadcast_buffers and options.comm == "real" and schedule.broadcasts_buffers
    if not (rank_config.ddp and wanted):
        return {}
    sizes: dict[tuple[int, str], int] = {}
    several = own.devices
    where = buffer_devices(several, own.parameters, own.buffers) if several else (0,) * len(own.buffers)
    for device, buffer in zip(where, own.buffers, strict=True):
        key = device, buffer.dtype
        sizes[key] = sizes.get(key, 0) + buffer.size_bytes
    sizes_of: dict[int, list[int]] = {}
    for (device, _), size in sorted(sizes.items(), key=lambda each: each[0][0]):
        sizes_of.setdefault(device, []).append(size)
    return sizes_of


def _price_apart(seconds: float) -> float:
    """Return seconds of a broadcast, whose constants are priced by themselves: without communication there is none."""
    if not isinstance(seconds, Linear):
        return seconds
    return Linear(seconds, tuple((BUFFERS_PART + name, times) for name, times in seconds.terms))


@dataclass(slots=True)
class OptimizerBuilder:
    """Writes the optimizer of one iteration of a rank.

    Attributes:
        to: the rank's resources.
        rank_config: what the rank runs.
        nodes: of the iteration.
        launches: what it launches and waits for.
    """

    to: RankBuilder
    rank_config: RankConfiguration
    nodes: IterationNodes
    launches: Launches

    def add_after_backward(self) -> None:
        """Write the optimizer that follows backward: its updates, in order, where the iteration ends a step of it.

        That a device waits between two of them is no time of the optimizer's.
        """
        to, nodes, launches, updates = self.to, self.nodes, self.launches, self.launches.scheduled.updates
        # Points are announced whether or not the optimizer steps, for messages may wait for them in each iteration.
        if to.one_thread:
            for update in updates:
                if nodes.stepped:
                    to.take_in(nodes, launches.take_waits(*update.before))
                    self.add_before_use(update)
                else:
                    to.launch_all(nodes, launches.mark_passed(*update.after))
            return
        # What the first update waits for comes before the optimizer's time begins, what later ones wait for is taken
        # off again: an interval that runs backwards, from its end to its begin.
        if updates and nodes.stepped:
            to.take_in(nodes, launches.take_waits(*updates[0].before))
        nodes.optimizer_begun = to.mark()
        for number, update in enumerate(updates):
            if nodes.stepped and number:
                paused = to.mark()
                to.take_in(nodes, launches.take_waits(*update.before))
                nodes.optimizer.append((to.mark(), paused))
            if nodes.stepped:
                self._compute(update)
            if number + 1 < len(updates):
                to.launch_all(nodes, launches.mark_passed(*update.after))
        to.add_on_stream(NodeKind.NOT_BEFORE)
        if updates:
            to.launch_all(nodes, launches.mark_passed(*updates[-1].after))
        if "after_optimizer" in self.rank_config.workload.synchronises:
            to.synchronise()

    def add_before_use(self, update: OptimizerUpdate) -> None:
        """Let the device, or the only thread, update parameters before forward needs them."""
        to, host_s = self.to, self.rank_config.pace(self.nodes.index).optimizer_host * update.share
        begun, writing, to.graph.writing = to.mark(), to.graph.writing, Cause.OPTIMIZER
        if not to.one_thread:
            self._compute(update)
            to.add_on_stream(NodeKind.NOT_BEFORE)
        elif to.sleeps:
            # It sleeps so long, wherever in a phase that is.
            to.graph.cause[to.on_host(NodeKind.DELAY, host_s)] = Cause.OPTIMIZER
        else:
            to.compute(host_s)
        to.graph.writing = writing
        self.nodes.optimizer.append((begun, to.mark()))
        to.launch_all(self.nodes, self.launches.mark_passed(*update.after))

    def _compute(self, update: OptimizerUpdate) -> None:
        """Let the device do a share of the optimizer, and its host launch it; or the host, once it has all it needs."""
        if update.host_s is not None:
            self.to.synchronise()
            self.to.host(update.host_s)
            return
        shares, pace = self.rank_config.execution.devices, self.rank_config.pace(self.nodes.index)
        for number, part in enumerate(shares):
            self.to.on_device(number)
            begun = self.to.mark() if len(shares) > 1 else None
            self.to.device(pace.optimizer_work * update.share * part)
            self.to.host(pace.optimizer_host * update.share * part)
            if begun is not None:
                self.nodes.parts.append((number, "optimizer", (begun, self.to.mark())))
        self.to.on_device(0)


class DeviceTurns:
    """Lets the devices of a rank compute in turn, and notes what each of them did.

    One host launches for all. A copy is queued on the stream of the device that it comes from, begins once the stream
    of the other has come to where it is needed, and that one goes on when it has ended: so torch copies between GPUs
    (`aten/src/ATen/native/cuda/Copy.cu`, torch 2.13).

    Args:
        to: the rank's resources.
        parts: its devices, in forward's order; empty where it has one.
    """

    def __init__(self, to: RankBuilder, parts: Sequence[DevicePart]) -> None:
        self._to, self._parts = to, parts
        self._name, self._begun, self._lowest = "", 0, 0

    def begin(self, name: str, begun: int) -> None:
        """Let the current device begin what it does of a phase where the node `begun` has ended."""
        self._name, self._begun, self._lowest = name, begun, self._to.current

    def hand_over(self, nodes: IterationNodes, target: int) -> tuple[int, int]:
        """Copy what the current device has made to `target`, and go on there.

        Returns:
            The nodes at whose ends the device had made it, and the other had come to where it is needed.
        """
        to, source = self._to, self._to.current
        to.on_device(target)
        free = to.event()
        to.on_device(source)
        computed = to.mark()
        waited = to.add_on_stream(NodeKind.WAIT, after=(free,))
        copied = to.copy(Copy(source, target, self._parts[min(source, target)].sent_bytes), to.stream)
        to.on_device(target)
        nodes.parts += [(source, self._name, (self._begun, computed)), (source, "copy", (waited, copied))]
        self._begun = to.add_on_stream(NodeKind.WAIT, after=(copied,))
        return computed, waited

    def go_back(self, nodes: IterationNodes, target: int, begun: int) -> int:
        """Let backward go on on `target`, with the copies that lead there; it may come back to where it has been.

        Args:
            begun: an event on the device from which on it has computed of backward.

        Returns:
            The same on the device that computes now.
        """
        to = self._to
        to.on_device(self._lowest)
        while self._lowest > target:
            self.hand_over(nodes, self._lowest - 1)
            there = to.event()
            to.on_device(self._lowest)
            nodes.backward.append((begun, to.event()))
            begun, self._lowest = there, self._lowest - 1
            to.on_device(self._lowest)
        to.on_device(target)
        return begun

    def join(self) -> None:
        """Let the rank be done when all its devices are."""
        to, ends = self._to, list[int]()
        for number in range(1, len(self._parts)):
            to.on_device(number)
            ends.append(to.event())
        to.on_device(0)
        if ends:
            to.add_on_stream(NodeKind.WAIT, after=tuple(ends))
            to.rank.last = to.event()

    def end(self, nodes: IterationNodes) -> None:
        """Note what the current device, the lowest that backward has come to, has done of the phase until now."""
        if not self._parts:
            return
        self._to.on_device(self._lowest if self._name == "backward" else self._to.current)
        nodes.parts.append((self._to.current, self._name, (self._begun, self._to.mark())))
