"""Builds what an iteration does before its forward: the batch, what ranks agree on, and rank 0's buffers."""

from __future__ import annotations

from ddpsim.simulation.graph import BUFFERS, IterationNodes, NodeKind
from ddpsim.simulation.rank_builder import RankBuilder
from ddpsim.simulation.setting import RankConfiguration


class PreForwardBuilder:
    """Writes what precedes the forward of each iteration of one rank.

    Args:
        to: the rank's resources.
        setting: what the rank runs.
    """

    def __init__(self, to: RankBuilder, setting: RankConfiguration) -> None:
        self._to, self._setting = to, setting
        self._device = not to.one_thread
        self._batch: int | None = None

    def take_batch(self, nodes: IterationNodes) -> None:
        """Have the batch on the device; where the stage is pipelined, load the next one and copy it meanwhile."""
        to, stage = self._to, self._setting.input_stage
        if stage is None:
            return
        if not self._device:
            begun = to.begin_phase()
            if stage.loaders == 0:
                to.compute(stage.load_s)
            else:
                to.on_host(NodeKind.LOAD)
            nodes.input = (begun, to.moment())
            return
        if stage.pipelined:
            batch = self._fetch_batch() if self._batch is None else self._batch
            to.add_on_stream(NodeKind.WAIT, after=(batch,))
            self._batch = self._fetch_batch()
        else:
            to.on_host(NodeKind.LOAD)
            if stage.copy_bytes > 0:
                to.add_on_stream(NodeKind.COPY)
                if not stage.queued:
                    to.synchronise()
        nodes.input = (nodes.start, to.event())

    def _fetch_batch(self) -> int:
        """Load a batch on the host and launch its copy; return the copy."""
        self._to.on_host(NodeKind.LOAD)
        return self._to.copy()

    def confer(self, nodes: IterationNodes) -> None:
        """Exchange what ranks expect of the order of gradients; the host reads it, and builds buckets where it says."""
        to, conferring = self._to, self._setting.confers(nodes.index)
        if conferring is None:
            return
        begun, host_s = to.event(), conferring.host_s + self._setting.costs.launch_s
        to.host(host_s) if self._device else to.serve(host_s)
        launched = to.collective(conferring.size_bytes, (to.event(),), conferring.operation, 0)
        if self._device:
            to.add_on_stream(NodeKind.WAIT, after=(launched,))
            to.synchronise()
            to.host(conferring.rebuild_s)
            to.add_on_stream(NodeKind.NOT_BEFORE)
        else:
            to.on_host(NodeKind.WAIT, after=(launched,))
            to.serve(conferring.rebuild_s)
        nodes.held_up.append((begun, to.event()))

    def broadcast(self, nodes: IterationNodes) -> None:
        """Let rank 0's buffers be everybody's."""
        to, setting = self._to, self._setting
        if not setting.broadcasts(nodes.index):
            return
        sizes_of = setting.broadcast_bytes()
        flattened_s, launch_s, copies_s = setting.broadcast_s
        # DDP's process groups take turns; what belongs to no schedule has the first lane.
        lane = None if setting.scheduled is None else setting.scheduled.buffers_lane
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
            begun = to.moment()
            to.on_host(NodeKind.DELAY, flattened_s)
            waits = []
            for size in sizes_of[0]:
                delayed = to.on_host(NodeKind.DELAY, launch_s)
                waits.append(to.collective(size, (delayed,), BUFFERS, lane))
            to.on_host(NodeKind.WAIT, after=tuple(waits))
        nodes.broadcast.append((begun, to.event()))
