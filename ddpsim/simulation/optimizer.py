"""Builds the optimizer of an iteration: after backward, at once or in parts, or before forward uses what it updates."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.simulation.graph import Cause, IterationNodes, NodeKind
from ddpsim.simulation.messages import Launches
from ddpsim.simulation.pace import Pace
from ddpsim.simulation.rank_builder import RankBuilder
from ddpsim.simulation.scheduled import Update


def pass_optimizer(
    to: RankBuilder,
    nodes: IterationNodes,
    launches: Launches,
    pace: Pace,
    updates: Sequence[Update] | None,
    *,
    optimises: bool,
) -> None:
    """Write the optimizer that follows backward.

    Args:
        updates: what a schedule has it do there, in order; None is all at once, without a schedule.
        optimises: whether the iteration ends a step of it.
    """
    (_on_thread if to.one_thread else _on_device)(to, nodes, launches, pace, updates, optimises)


def update_before_use(to: RankBuilder, nodes: IterationNodes, launches: Launches, update: Update, pace: Pace) -> None:
    """Let the device, or the only thread, update parameters before forward needs them."""
    begun, writing, to.graph.writing = to.moment(), to.graph.writing, Cause.OPTIMIZER
    if not to.one_thread:
        to.device(pace.optimizer_work * update.share)
        to.host(pace.optimizer_host * update.share)
        to.on_stream(NodeKind.NOT_BEFORE)
    elif to.timed:
        # It sleeps so long, wherever in a phase that is.
        to.graph.cause[to.thread(NodeKind.DELAY, pace.optimizer_host * update.share)] = Cause.OPTIMIZER
    else:
        to.compute(pace.optimizer_host * update.share)
    to.graph.writing = writing
    nodes.optimizer.append((begun, to.moment()))
    to.launch_all(nodes, launches.passed(*update.after))


def _on_thread(
    to: RankBuilder,
    nodes: IterationNodes,
    launches: Launches,
    pace: Pace,
    updates: Sequence[Update] | None,
    optimises: bool,
) -> None:
    if updates is None and optimises:
        begun = to.begin_phase()
        to.compute(pace.optimizer_host)
        nodes.optimizer.append((begun, to.moment()))
    for update in updates or ():
        if optimises:
            to.take_in(nodes, launches.waits(*update.before))
            update_before_use(to, nodes, launches, update, pace)
        else:
            to.launch_all(nodes, launches.passed(*update.after))


def _on_device(
    to: RankBuilder,
    nodes: IterationNodes,
    launches: Launches,
    pace: Pace,
    updates: Sequence[Update] | None,
    optimises: bool,
) -> None:
    """Write the optimizer's parts; that the device waits between two of them is no time of the optimizer's."""
    if updates:
        to.take_in(nodes, launches.waits(*updates[0].before) if optimises else ())
    nodes.optimizer_begun = to.moment()
    if updates is None and optimises:
        to.device(pace.optimizer_work)
        to.host(pace.optimizer_host)
    updates = updates or ()
    for number, update in enumerate(updates):
        if optimises and number:
            paused = to.moment()
            to.take_in(nodes, launches.waits(*update.before))
            nodes.optimizer.append((to.moment(), paused))
        if optimises:
            to.device(pace.optimizer_work * update.share)
            to.host(pace.optimizer_host * update.share)
        if number + 1 < len(updates):
            to.launch_all(nodes, launches.passed(*update.after))
    to.on_stream(NodeKind.NOT_BEFORE)
    if updates:
        to.launch_all(nodes, launches.passed(*updates[-1].after))
    if "after_optimizer" in to.workload.synchronises:
        to.host_waits(to.event())
