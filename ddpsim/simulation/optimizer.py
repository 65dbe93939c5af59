"""Builds the optimizer of an iteration: after backward, at once or in parts, or before forward uses what it updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.simulation.graph import Cause, IterationNodes, NodeKind
from ddpsim.simulation.messages import Launches
from ddpsim.simulation.pace import IterationProfile
from ddpsim.simulation.rank_builder import RankBuilder
from ddpsim.simulation.scheduled import OptimizerUpdate


@dataclass(slots=True)
class OptimizerBuilder:
    """Writes the optimizer of one iteration of a rank.

    Attributes:
        to: the rank's resources.
        nodes: of the iteration.
        launches: what it launches and waits for.
        pace: of the iteration.
    """

    to: RankBuilder
    nodes: IterationNodes
    launches: Launches
    pace: IterationProfile

    def after_backward(self, updates: Sequence[OptimizerUpdate] | None, *, optimises: bool) -> None:
        """Write the optimizer that follows backward.

        Args:
            updates: what a schedule has it do there, in order; None is all at once, without a schedule.
            optimises: whether the iteration ends a step of it.
        """
        (self._on_thread if self.to.one_thread else self._on_device)(updates, optimises)

    def before_use(self, update: OptimizerUpdate) -> None:
        """Let the device, or the only thread, update parameters before forward needs them."""
        to, host_s = self.to, self.pace.optimizer_host * update.share
        begun, writing, to.graph.writing = to.moment(), to.graph.writing, Cause.OPTIMIZER
        if not to.one_thread:
            self._compute(update.share)
            to.on_stream(NodeKind.NOT_BEFORE)
        elif to.timed:
            # It sleeps so long, wherever in a phase that is.
            to.graph.cause[to.thread(NodeKind.DELAY, host_s)] = Cause.OPTIMIZER
        else:
            to.compute(host_s)
        to.graph.writing = writing
        self.nodes.optimizer.append((begun, to.moment()))
        self._launch_after(update)

    def _on_thread(self, updates: Sequence[OptimizerUpdate] | None, optimises: bool) -> None:
        if updates is None and optimises:
            begun = self.to.begin_phase()
            self.to.compute(self.pace.optimizer_host)
            self.nodes.optimizer.append((begun, self.to.moment()))
        for update in updates or ():
            if optimises:
                self._take_in(update)
                self.before_use(update)
            else:
                self._launch_after(update)

    def _on_device(self, updates: Sequence[OptimizerUpdate] | None, optimises: bool) -> None:
        """Write the optimizer's parts; that the device waits between two of them is no time of the optimizer's."""
        to, nodes = self.to, self.nodes
        if updates and optimises:
            self._take_in(updates[0])
        nodes.optimizer_begun = to.moment()
        if updates is None and optimises:
            self._compute(1.0)
        updates = updates or ()
        for number, update in enumerate(updates):
            if optimises and number:
                paused = to.moment()
                self._take_in(update)
                nodes.optimizer.append((to.moment(), paused))
            if optimises:
                self._compute(update.share)
            if number + 1 < len(updates):
                self._launch_after(update)
        to.on_stream(NodeKind.NOT_BEFORE)
        if updates:
            self._launch_after(updates[-1])
        if "after_optimizer" in to.workload.synchronises:
            to.host_waits(to.event())

    def _compute(self, share: float) -> None:
        """Let the device do a share of the optimizer, and its host launch it."""
        self.to.device(self.pace.optimizer_work * share)
        self.to.host(self.pace.optimizer_host * share)

    def _take_in(self, update: OptimizerUpdate) -> None:
        self.to.take_in(self.nodes, self.launches.waits(*update.before))

    def _launch_after(self, update: OptimizerUpdate) -> None:
        self.to.launch_all(self.nodes, self.launches.passed(*update.after))
