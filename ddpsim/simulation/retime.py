"""A run under other constants, without running it again: all assumptions at once, a column each.

A run has shown in which order each resource takes its nodes, which collectives overlap, and how much longer each took
than by itself. With those kept, when each node begins and ends follows from what nodes take: the latest end of what it
comes after. What overlapping costs is looked up in the moments of the pass before, and passes are repeated until no
moment moves. A column in which what was kept would change says so, and has to be simulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddpsim.collectives.transport import alone_s
from ddpsim.options.input_stage import Loader
from ddpsim.simulation.assumptions import Assumptions
from ddpsim.simulation.dependencies import Dependencies, Moments
from ddpsim.simulation.graph import NodeKind
from ddpsim.simulation.inputs import copies_of
from ddpsim.simulation.job_run import JobRun, SimulatedIterations
from ddpsim.simulation.prices import Columns, Prices
from ddpsim.simulation.retimed_messages import RetimedCollectives
from ddpsim.simulation.retimed_work import RankWork, RetimedRun
from ddpsim.trace.cycles import cycles

SETTLED = 2e-4
"""Share of the period by which it no longer changes from one pass to the next, where it has settled."""

PASSES = 7
"""So many at most; a column that has not settled then is simulated."""

DAMPED_FROM = 2
"""The pass from which on nodes take the mean of what they took and what they would: overlaps may swing otherwise."""

ALONE = 1.001
"""Factor on the time of a copy of a batch by itself up to which nothing shared its links."""

MET_OTHERS = 0.05
"""Share of collectives' time in which they share links otherwise than in the run, from which on a column is simulated.

Chosen by hand; `python -m studies.retiming` prints how far retimed columns are from simulated ones.
"""

FAITHFUL = 2e-4
"""Share of the period by which the run's own assumptions, retimed, may miss it."""


@dataclass(frozen=True, slots=True)
class Period:
    """One iteration of a rank: where it begins and ends, and whether the optimizer ends it with a step."""

    begin: int
    end: int
    stepped: bool


def retimable(run: JobRun) -> bool:
    """Whether a run has a graph that other constants keep.

    Asynchronous servers' ranks go on as messages come, threads of one process and compiled graphs have hosts' times of
    which only a part is the pace; where batches and messages had the same links, other runs share them otherwise.
    """
    options, schedule = run.job.options, run.schedule
    if options.asynchronous or options.compiled or (schedule is not None and schedule.one_process):
        return False
    known = all(any(kind.paces is draw.records for kind in run.kinds) for draw in run.draws)
    return known and not _copies_share_links(run)


def _copies_share_links(run: JobRun) -> bool:
    """Whether copies of batches took longer than by themselves, for messages that had the same links then."""
    job, end, begin = run.job, run.times.end, run.times.begin
    for draw, setting, rank in zip(run.draws, run.settings, run.graph.ranks, strict=True):
        stage, kinds = setting.input_stage, run.graph.kind
        copies = [*rank.copies, *(node for node in rank.compute if kinds[node] is NodeKind.COPY)]
        if stage is None or not copies or stage.copy_bytes == 0 or job.options.fidelity == "closed":
            continue
        together = range(job.placement.world_size) if stage.in_turn else draw.stands_for
        by_itself_s = alone_s(*copies_of(job.placement, together, stage))
        if any(math.inf > end[node] > begin[node] + ALONE * by_itself_s for node in copies):
            return True
    return False


def periods_s(run: JobRun, extent: SimulatedIterations, assumed: Sequence[Assumptions]) -> list[float | None]:
    """Return the period under each of `assumed`; None where it has to be simulated.

    Args:
        run: that has begun with the iterations of `extent`, at least.
        extent: which iterations count.
    """
    if not assumed or not retimable(run):
        return [None] * len(assumed)
    own = Assumptions(run.job.calibration, run.job.wire_factor)
    retiming = _Retiming(run, extent, [own, *assumed])
    found_s, settled = retiming.periods()
    simulated_s = retiming.simulated_s
    if abs(found_s[0] - simulated_s) > FAITHFUL * simulated_s:
        return [None] * len(assumed)
    kept = settled & ~retiming.prices.another & ~retiming.overlaps_change()
    return [
        simulated_s + float(each - found_s[0]) if ok else None for each, ok in zip(found_s[1:], kept[1:], strict=True)
    ]


class _Retiming:
    """The columns of one run under several assumptions, the first of which are its own."""

    def __init__(self, run: JobRun, extent: SimulatedIterations, assumed: Sequence[Assumptions]) -> None:
        self._run, self._extent, self._columns = run, extent, len(assumed)
        self.prices = Prices(run, assumed)
        self._dependencies = Dependencies(run, extent.end)
        rows = self._dependencies.rows
        seen_s = np.zeros(rows.count)
        for node, row in enumerate(rows.of):
            if row >= 0:
                seen_s[row] = run.times.end[node]
        self._lasts = np.zeros((rows.count, self._columns))
        self._seen = RetimedRun(run, self.prices, rows, seen_s, self._lasts, np.zeros_like(self._lasts))
        self._ranks = [RankWork(self._seen, number) for number in range(len(run.graph.ranks))]
        meets = run.job.options.comm == "real" and any(streams[3] for streams in rows.streams)
        self._messages = RetimedCollectives(self._seen, self._ranks) if meets else None

    @property
    def simulated_s(self) -> float:
        """The period that was simulated."""
        return float(self._period_of(self._seen.end_s[:, None])[0])

    def periods(self) -> tuple[Columns, Columns]:
        """Return the period of each column, and whether it has settled."""
        now = self._pass()
        found, settled = self._period_of(now.end), np.ones(self._columns, dtype=bool)
        for number in range(PASSES):
            before, took = found, self._lasts.copy() if number >= DAMPED_FROM else None
            if not self._relax(now):
                break
            if took is not None:
                self._lasts += took
                self._lasts /= 2
            now = self._pass()
            found = self._period_of(now.end)
            settled = np.abs(found - before) <= SETTLED * found
            if settled.all():
                break
        return found, settled

    def overlaps_change(self) -> NDArray[np.bool_]:
        """Return in which columns collectives meet others on links that they did not meet in the run, or miss some."""
        if self._messages is None:
            return np.zeros(self._columns, dtype=bool)
        return np.broadcast_to(self._messages.changed_overlap() > MET_OTHERS, self._columns)

    def _pass(self) -> Moments:
        run, shape = self._run, self._lasts.shape
        nothing: Columns = np.zeros(self._columns)
        stage = [setting.input_stage for setting in run.settings]
        lanes = len(run.graph.ranks[0].lanes)
        now = Moments(
            end=np.zeros(shape),
            lasts=self._lasts,
            begin=np.zeros(shape),
            wire=np.zeros(shape),
            late=self._seen.late,
            free=[[nothing] * run.shared.collectives.streams_per_group for _ in range(lanes)],
            due=[nothing for _ in stage],
            line=[[nothing if self._messages is None else self._messages.line_s, nothing] for _ in range(lanes)],
            loaders=[[] if each is None else [Loader(each) for _ in range(self._columns)] for each in stage],
        )
        for operation in self._dependencies.operations:
            operation(now)
        return now

    def _relax(self, now: Moments) -> bool:
        """Let nodes take what overlapping costs them at these moments; return whether any does."""
        horizon_s = 2.0 * float(now.end.max()) + 1e-9
        changed = [rank.relax(now, horizon_s) for rank in self._ranks]
        if self._messages is not None:
            changed.append(self._messages.relax(now, horizon_s))
        return any(changed)

    def _period_of(self, end: Columns) -> Columns:
        run, row = self._run, self._dependencies.rows.of
        drops = any(run.job.options.drop.values())
        steps = run.job.options.periodic.get("steps", 1)
        found: list[Columns] = []
        for rank, setting in zip(run.graph.ranks, run.settings, strict=True):
            if rank.number < 0:
                continue
            counted = rank.iterations[self._extent.begin : self._extent.end]
            marks = [Period(row[each.start], row[each.end], setting.optimises(each.index)) for each in counted]
            means = [
                np.mean([end[each.end] - end[each.begin] for each in group], axis=0) for group in cycles(marks, steps)
            ]
            found.append(np.mean(means, axis=0) if drops else np.median(means, axis=0))
        slowest: Columns = np.max(found, axis=0)
        return slowest
