"""A run under other constants, without running it again: all assumptions at once, a column each.

A run has shown in which order each resource takes its nodes, which collectives overlap, and how much longer each took
than by itself. With those kept, when each node begins and ends follows from what nodes take: the latest end of what it
comes after. What overlapping costs is looked up in the moments of the pass before, and passes are repeated until no
moment moves. A column in which what was kept would change says so, and has to be simulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ddpsim.collectives.transport import alone_s
from ddpsim.options.input_stage import Loader
from ddpsim.simulation.assumptions import Assumptions
from ddpsim.simulation.communication import copies_of
from ddpsim.simulation.dependencies import Dependencies, Moments
from ddpsim.simulation.graph import NodeKind
from ddpsim.simulation.job_run import Columns, JobRun, period_of
from ddpsim.simulation.prices import Prices, has_prices
from ddpsim.simulation.resolve import SimulatedIterations
from ddpsim.simulation.retimed_messages import RetimedCollectives
from ddpsim.simulation.retimed_work import RankWork, RetimedRun

SETTLED = 2e-4
"""Share of the period by which it no longer changes from one pass to the next, where it has settled."""

PASSES = 7
"""So many at most; a column that has not settled then is simulated."""

DAMPED_FROM = 2
"""The pass from which on nodes take the mean of what they took and what they would: overlaps may swing otherwise."""

MOST_RATIO = 0.7
"""Of what a period moves in a pass to what it did in the pass before, where it has a limit; it is half where nodes
take the mean and overlaps stay. Chosen by hand, as `python -m studies.retiming` prints how far that is off."""

ALONE = 1.001
"""Factor on the time of a copy of a batch by itself up to which nothing shared its links."""

MET_OTHERS = 0.05
"""Share of collectives' time in which they share links otherwise than in the run, from which on a column is simulated.

Chosen by hand; `python -m studies.retiming` prints how far retimed columns are from simulated ones.
"""

FAITHFUL = 2e-4
"""Share of the period by which the run's own assumptions, retimed, may miss it."""


def retimable(run: JobRun) -> bool:
    """Whether a run has a graph that other constants keep.

    Asynchronous servers' ranks go on as messages come; where batches and messages had the same links, other runs share
    them otherwise.
    """
    if run.job.options.asynchronous:
        return False
    return has_prices(run) and not _copies_share_links(run)


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


def periods_s(
    run: JobRun,
    extent: SimulatedIterations,
    assumed: Sequence[Assumptions],
    order: Dependencies | None = None,
) -> list[float | None]:
    """Return the period under each of `assumed`; None where it has to be simulated.

    Args:
        run: that has begun with the iterations of `extent`, at least.
        extent: which iterations count.
        order: of the run's nodes until `extent.end`; None finds it.
    """
    if not assumed or not retimable(run):
        return [None] * len(assumed)
    retiming = _Retiming(run, extent, assumed, order)
    found_s, settled = retiming.periods()
    simulated_s = retiming.simulated_s
    if not abs(found_s[0] - simulated_s) <= FAITHFUL * simulated_s:
        return [None] * len(assumed)
    prices = retiming.prices
    silent = [each.silent for each in prices.assumed]
    kept = settled & ~prices.another & ~retiming.another_way() & ~retiming.overlaps_change() & ~np.array(silent)
    return [
        simulated_s + float(each - found_s[0]) if ok else None for each, ok in zip(found_s[1:], kept[1:], strict=True)
    ]


def _limit(found: Columns, moved: Columns, before: Columns) -> Columns:
    """Return where periods go to that move by a smaller part each pass; NaN where they do not.

    Args:
        found: now.
        moved, before: by what from the pass before, and from the one before that.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = moved / before
    shrinks = (ratio > 0) & (ratio < MOST_RATIO)
    return np.where(shrinks, found + moved * ratio / (1 - np.where(shrinks, ratio, 0.0)), np.nan)


class _Retiming:
    """The columns of one run under its own assumptions and several others."""

    def __init__(
        self, run: JobRun, extent: SimulatedIterations, assumed: Sequence[Assumptions], order: Dependencies | None
    ) -> None:
        self._run, self._extent, self._columns = run, extent, 1 + len(assumed)
        self.prices = Prices(run, assumed)
        self._dependencies = order or Dependencies(run, extent.end)
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
        """Return the period of each column, and whether it has settled: itself, or where it goes to."""
        now = self._pass()
        found, settled = self._period_of(now.end), np.ones(self._columns, dtype=bool)
        limit, moved, limited = found, np.zeros(self._columns), ~settled
        for number in range(PASSES):
            took = self._lasts.copy() if number >= DAMPED_FROM else None
            if not self._relax(now):
                break
            if took is not None:
                self._lasts += took
                self._lasts /= 2
            now = self._pass()
            period = self._period_of(now.end)
            found, moved, before, limit_before = period, period - found, moved, limit
            limit = _limit(found, moved, before)
            itself = np.abs(moved) <= SETTLED * found
            limited = ~itself & (np.abs(limit - limit_before) <= SETTLED * found)
            settled = itself | limited
            if settled.all():
                break
        return np.where(limited, limit, found), settled

    def another_way(self) -> NDArray[np.bool_]:
        """Return in which columns collectives are carried out otherwise than in the run."""
        if self._messages is None:
            return np.zeros(self._columns, dtype=bool)
        return self._messages.another_way

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
        row = self._dependencies.rows.of
        return np.asarray(period_of(self._run, self._extent, lambda node: end[row[node]]))
