"""A run under other constants, without running it again where that can be: all assumptions at once, a column each.

A run has shown in which order each resource takes its nodes, which collectives overlap, and how much longer each took
than by itself. If these stay, each node begins at the latest end of what it comes after, and ends follow from what
nodes take. What overlapping costs is read off the times of the pass before, and passes are repeated until no time
moves: a fixed point. Where the order, or who overlaps whom, would change in a column, its period is not to be had so
and None is returned; it has to be simulated: by the same graph run again with what its nodes take then (`run_again`),
or, where the graph would be another, from the start.

Read `periods_s`, then `_Retiming.effects`, which decides of each column whether it has settled. `RankWork` is what one
rank computes beside its collectives: its nodes' seconds, and by what they are slowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heapreplace

import numpy as np
import simpy
from numpy.typing import NDArray

from ddpsim.common.options.input_stage import Loader
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.contention import MOST, slowdown_factor
from ddpsim.simulation.graph import NodeKind, StepGraph, beside_computing
from ddpsim.simulation.job_run import JobRun, make_graph_run, period_of
from ddpsim.simulation.resolve import SimulatedIterations
from ddpsim.simulation.retiming.collectives import ROUNDING, BatchCopies, RetimedCollectives
from ddpsim.simulation.retiming.dependencies import Dependencies, PassTimes, RetimedRun, goes_apart, narrow
from ddpsim.simulation.retiming.intervals import Columns, is_in_flight, mean_factors, sort_changes
from ddpsim.simulation.retiming.prices import Prices, has_prices

_SLOWED = (NodeKind.COMPUTE, NodeKind.SERVE, NodeKind.LASTING)
_NOTHING_S = 1e-12


class RankWork:
    """The work of one rank.

    Args:
        seen: gets what its nodes take, slowed as much as they were in the run.
        prices: of them, the first column of which is the run's.
        number: place of the rank in the graph.
    """

    def __init__(self, seen: RetimedRun, prices: Prices, number: int) -> None:
        order = seen.order
        rank = order.graph.ranks[number]
        self._seen, self._thread = seen, rank.one_thread
        nodes = np.array([*rank.host, *rank.compute, *rank.delays])
        # How far a completion lags behind its hook is no time that the device works.
        lasting = order.kind[nodes] != NodeKind.NOT_BEFORE
        seen.lasts[order.row[nodes]] = prices.seconds[nodes] * lasting[:, None]
        stream = np.array(rank.host if self._thread else rank.compute, dtype=np.intp)
        places = np.flatnonzero(np.isin(order.kind[stream], _SLOWED))
        work, kinds = stream[places], order.kind[stream[places]]
        self._work, self._queued = order.row[work], order.row[order.queued[work]]
        # Rows of a stream are consecutive, so that the one before ends where a node may begin.
        self._before = np.where(places > 0, self._work - 1, 0)
        self._seconds = prices.seconds[work]
        self._serves, busy = kinds != NodeKind.COMPUTE, kinds != NodeKind.SERVE
        self._busy = slice(None) if busy.all() else np.flatnonzero(busy)
        self._computing = np.isin(work, list(beside_computing(order.graph, rank.compute)))
        collectives = [node for lane in rank.lanes for node in lane]
        self._flights = order.row[np.array(collectives, dtype=np.intp)]
        self._copy_slowdown = np.array([each.copy_slowdown for each in prices.costs])
        self._taken: tuple[Columns, Columns]
        self._slowdown(prices, number, collectives)
        self._late_s = prices.ranks[number].late_s
        self._known: tuple[Columns, Columns, Columns] | None = None
        self._scale_to_seen(collectives)

    def leave_out_but(self, columns: NDArray[np.intp]) -> None:
        """Go on with some columns only."""
        narrow(self, ("_seconds", "_copy_slowdown", "_fixed", "_tail", "_late_s"), columns)
        many, bandwidth = self._taken
        self._taken, self._known = (many[:, columns], bandwidth[:, columns]), None

    def _slowdown(self, prices: Prices, number: int, collectives: Sequence[int]) -> None:
        """Find what collectives take of the rank's processor in each column, or the factor that is known."""
        run = self._seen.run
        rank_config, costs = run.rank_configs[number], prices.ranks[number].costs
        known = [each.compute_slowdown_fixed for each in costs]
        self._fixed = np.where(known, [each.compute_slowdown for each in costs], np.nan)
        self._share = rank_config.workload.arithmetic_share
        self._tail = np.array([each.tail_share for each in costs])
        nothing = np.zeros((len(collectives), len(costs)))
        self._taken = nothing, nothing
        # Shares of the GPU are taken from each transport once, and scaled from the run's constants to a column's: they
        # are proportional to both. Where the run had a measured factor, shares are unknown, and no column needs them.
        if known[0] or not collectives:
            return
        distinct = list({id(each): each for each in prices.shared}.values())
        columns = [distinct.index(each) for each in prices.shared]
        slowdowns = [each.slowdown(rank_config.costs, rank_config.gpu, self._share) for each in distinct]
        mine = [run.graph.collectives[node] for node in collectives]
        rows = {each.key: (row, each) for row, each in enumerate({each.key: each for each in mine}.values())}
        taken = [[slowdown.taken(each) for slowdown in slowdowns] for _, each in rows.values()]
        many, bandwidth = (
            np.array([[getattr(each, name) for each in row] for row in taken])[:, columns]
            for name in ("multiprocessors", "bandwidth")
        )
        bandwidth /= np.array([prices.wire(each.size_bytes) for _, each in rows.values()])
        each_row = [rows[each.key][0] for each in mine]
        self._taken = (
            (many * _divide_by_first([each.channel_multiprocessors for each in costs]))[each_row],
            (bandwidth * _divide_by_first([each.memory_passes for each in costs]))[each_row],
        )

    def _scale_to_seen(self, collectives: Sequence[int]) -> None:
        """Let work take as many times its own seconds as it did in the run, and collectives be late that were."""
        times, own_late_s = self._seen.run.times, self._late_s[0]
        # A run does not say which collectives came upon computation: those that began later than their stream was free.
        if own_late_s > 0:
            graph, streams = self._seen.run.graph, self._seen.run.shared.collectives.streams_per_group
            free: dict[int, list[float]] = {}
            for node, row in zip(collectives, self._flights, strict=True):
                lane = free.setdefault(graph.collectives[node].lane, [0.0] * streams)
                ready_s = max(heapreplace(lane, times.end[node]), *(times.end[each] for each in graph.after[node]))
                if times.begin[node] - ready_s > own_late_s / 2:
                    self._seen.late[row] = self._late_s
        if not len(self._work):
            return
        seen = self._seen.end_s
        took_s, own_s = seen[self._work] - self._begin(seen), self._seconds[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where((own_s > _NOTHING_S) & np.isfinite(took_s), took_s / own_s, 1.0)
        self._seen.lasts[self._work] = self._seconds * ratio[:, None]

    def _begin(self, end: Columns) -> Columns:
        """Return when work began, where what is before it has ended at `end`."""
        return end[self._before] if self._thread else np.maximum(end[self._before], end[self._queued])

    def find_busy(self, end: Columns) -> tuple[Columns, Columns]:
        """Return when the rank's processor began and ended to be busy, one time after the other."""
        return self._work_at(end)[0][self._busy], self._work_at(end)[1][self._busy]

    def _work_at(self, end: Columns) -> tuple[Columns, Columns]:
        if self._known is None or self._known[0] is not end:
            self._known = end, self._begin(end), end[self._work]
        return self._known[1:]

    def relax(self, now: PassTimes, horizon_s: float) -> bool:
        """Let work take what the collectives in flight at these times cost it; return whether they cost anything."""
        if self._late_s.any() and len(self._flights) and len(self._work):
            self._delay_late(now, horizon_s)
        disturbed = bool((self._fixed != 1).any())
        copying = bool(self._serves.any() and (self._copy_slowdown != 1).any())
        if not len(self._work) or not len(self._flights) or not (disturbed or copying):
            return False
        begin, end = self._work_at(now.end)
        flights, slowed_s = (now.begin[self._flights], now.end[self._flights]), self._seconds
        if disturbed:
            times, factors = self._factors(*flights)
            slowed_s = slowed_s * mean_factors(begin, end, times, factors, horizon_s)
        if self._serves.any():
            begun, over = (np.sort(each, axis=0) for each in flights)
            flying = is_in_flight(begin[self._serves], begun, over, horizon_s)
            slowed = np.where(flying, self._copy_slowdown, 1.0)
            slowed_s = slowed_s.copy()
            slowed_s[self._serves] = self._seconds[self._serves] * slowed
        self._seen.lasts[self._work] = slowed_s
        return True

    def _delay_late(self, now: PassTimes, horizon_s: float) -> None:
        """Let those collectives wait for multiprocessors that come upon computation."""
        ready = now.begin[self._flights] - self._seen.late[self._flights]
        begin, end = self._work_at(now.end)
        computed = is_in_flight(ready, begin[self._computing], end[self._computing], horizon_s, "right")
        self._seen.late[self._flights] = np.where(computed, self._late_s, 0.0)

    def _factors(self, begin: Columns, end: Columns) -> tuple[Columns, Columns]:
        """Return when collectives begin and end, and the factor on computing time from each such time on."""
        times, count, multiprocessors, bandwidth = sort_changes(begin, end, *self._taken)
        tail = np.where(multiprocessors > _NOTHING_S, self._tail, 0.0)
        derived = slowdown_factor(self._share, tail, np.minimum(multiprocessors, MOST), np.minimum(bandwidth, MOST))
        factor = np.where(np.isnan(self._fixed), derived, self._fixed)
        return times, np.where(count > 0.5, factor, 1.0)


def _divide_by_first(values: Sequence[float]) -> Columns:
    """Return values over the first of them; 0 where that is none."""
    return np.array(values) / values[0] if values[0] else np.zeros(len(values))


# All chosen by hand: `python -m studies.retiming` prints by how much retimed periods are off, and what they cost.
SETTLED = 5e-5
"""Share of the period by which it no longer changes from one pass to the next, where it has settled."""

SETTLED_EFFECT = 0.02
"""The same as a share of what the assumption changes: a doubt is not known to a fiftieth of itself."""

AHEAD = 5.0
"""A period whose passes shrink to a limit within `SETTLED` has settled while it moves by up to so many times that."""

MOST_SWINGS = 0.01
"""Share of a step by which the times of a rank's nodes, in sum, may still move in a pass where the period has settled.

Times that swing against each other may leave a period where it is for one pass by chance.
"""

PASSES = 7
"""Passes at most; a column that has not settled by then is simulated."""

DAMPED_BY = 0.1
"""The part by which what nodes take stays behind what they would in a pass: overlaps may swing otherwise.

Chosen by hand, as the one of 0.1, 0.15, 0.2, 0.25 and 0.5 that took the fewest passes on seven jobs.
"""

FAR_SLOWED = 2.0
"""Factor on messages beside computation from which on overlaps swing further: a message gains more of a computation
that ends sooner than what that ends sooner by."""

DAMPED_FAR, PASSES_FAR = 0.3, 10
"""The same as `DAMPED_BY` and `PASSES` there.

Chosen by hand: of 0.1, 0.3 and 0.5, and of 7, 10 and 14, the fewest that settled all of eight jobs on two p3.16xlarge.
"""

MOST_RATIO = 0.7
"""Ratio of a period's move in a pass to that in the pass before, either way, up to which its moves have a limit."""

MET_OTHERS = 0.03
"""Share of collectives' time in which they share links otherwise than in the run, above which a column is simulated."""

MET_OTHERS_APART = 0.01
"""The same where ranks do not meet: what one of them is late by moves whom it meets next. Chosen by hand, as that."""

MET_OTHERS_STAGED = 1e-4
"""The same of a pipeline, where an assumption moves the step by more than `SMALL_EFFECT`: longer messages between
stages let others go first, and in the order of the run the ends of its band were up to 3.3 % of the step off."""

SMALL_EFFECT = 0.005
"""Share of a pipeline's step by which an assumption may move it and still be judged by `MET_OTHERS`."""

FAITHFUL = 2e-4
"""Share of the period by which the run's own assumptions, retimed, may miss it."""


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
    if not assumed or not has_prices(run):
        return [None] * len(assumed)
    retiming = _Retiming(run, extent, assumed, order)
    # The first column is the run's own. Periods are differences from it, added to the simulated one: what retiming
    # misses of a run it misses of every column.
    effects = zip(*retiming.effects(), strict=True)
    return [retiming.simulated_s + float(more_s) if settled else None for more_s, settled in effects][1:]


def run_again(
    run: JobRun, extent: SimulatedIterations, assumed: Sequence[Assumptions], graph: StepGraph | None = None
) -> list[float | None]:
    """Return the period under each of `assumed`, of the same graph run again with what its nodes take then.

    Args:
        run: that has begun with the iterations of `extent`, at least.
        extent: which iterations count.
        graph: of the iterations until `extent.end`; None finds it.

    Returns:
        None where nodes would be others, or might: it has to be built anew.
    """
    if not assumed or not has_prices(run):
        return [None] * len(assumed)
    graph = graph or run.graph.until(extent.end)
    prices = Prices(run, graph, assumed)
    # Of several recorded iterations another may be the latest where one of two clocks changes.
    one = all(len(kind.paces) == 1 for kind in run.kinds)
    same_graph = [
        not prices.another[column] and (one or (each.compute, each.host, each.excess) == (1, 1, 1))
        for column, each in enumerate(assumed, 1)
    ]
    return [
        _period_again(run, graph, extent, prices, column) if same else None for column, same in enumerate(same_graph, 1)
    ]


def _period_again(run: JobRun, graph: StepGraph, extent: SimulatedIterations, prices: Prices, column: int) -> float:
    """Return the period of the first iterations of a run under one of several assumptions."""
    job = prices.jobs[column]
    graph = replace(graph, seconds=prices.seconds[:, column].tolist())
    options = replace(job.options, scale_compute=job.options.scale_compute * prices.assumed[column].compute)
    ranks = zip(run.rank_configs, prices.ranks, strict=True)
    rank_configs = [
        replace(each.with_input(prices.assumed[column].input), costs=rank.costs[column], options=options)
        for each, rank in ranks
    ]
    shared = job.communication(simpy.Environment(), run.rank_configs[0].scheduled(0))
    again = make_graph_run(replace(run, job=job, rank_configs=rank_configs), shared, graph)
    end = again.run().end
    return float(period_of(run, extent, lambda node: np.array(end[node])))


def _limit(period: Columns, moved: Columns, before: Columns) -> Columns:
    """Return where periods go to that move by a smaller part each pass, either way; NaN where they do not.

    The rest of a geometric series, as Aitken's delta-squared process has it.

    Args:
        period: now.
        moved, before: by what from the pass before, and from the one before that.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = moved / before
    shrinks = np.abs(ratio) < MOST_RATIO
    return np.where(shrinks, period + moved * ratio / (1 - np.where(shrinks, ratio, 0.0)), np.nan)


class _Retiming:
    """The columns of one run under its own assumptions and several others."""

    def __init__(
        self, run: JobRun, extent: SimulatedIterations, assumed: Sequence[Assumptions], order: Dependencies | None
    ) -> None:
        self._run, self._extent, self._columns = run, extent, 1 + len(assumed)
        self._dependencies = order or Dependencies(run, extent.end)
        count, graph = self._dependencies.count, self._dependencies.graph
        self.prices = Prices(run, graph, assumed)
        self._assumed = list(self.prices.assumed)
        row = self._dependencies.row
        seen_s = np.zeros(count)
        seen_s[row[row >= 0]] = np.array(run.times.end)[row >= 0]
        lasts, late = (np.zeros((count, self._columns)) for _ in range(2))
        self._seen, numbers = RetimedRun(run, self._dependencies, seen_s, lasts, late), range(len(graph.ranks))
        self._ranks = [RankWork(self._seen, self.prices, number) for number in numbers]
        self._copies = [BatchCopies.of(self._seen, self.prices, number) for number in numbers]
        meets = run.job.options.comm == "real" and any(any(rank.lanes) for rank in graph.ranks)
        busy = [rank.find_busy for rank in self._ranks]
        self._messages = RetimedCollectives(self._seen, self.prices, busy, self._copies) if meets else None
        self.simulated_s = float(self._period_of(seen_s[:, None])[0])
        far = run.job.costs.slowdown_of(run.shared.collectives.transport.hops) >= FAR_SLOWED
        self._damped_by, self._passes = (DAMPED_FAR, PASSES_FAR) if far else (DAMPED_BY, PASSES)

    def effects(self) -> tuple[Columns, NDArray[np.bool_]]:
        """Return how much longer the period of each column is than the run's own, and whether that may be relied on.

        A column has the value of the pass in which it settles, so that it does not depend on which others are asked
        for; the run's own goes on to the last. Columns that have settled are left out of further passes.
        """
        # `columns` are the numbers of those still in the arrays; `done`, `valid` and `more_s` have all.
        more_s, columns, done = np.zeros(self._columns), np.arange(self._columns), np.zeros(self._columns, dtype=bool)
        now = self._pass()
        effect_s, moved = self._effects(now), np.zeros(self._columns)
        valid = self._is_as_seen(now, effect_s)
        more_s[:] = effect_s
        for _ in range(self._passes):
            # One pass: what overlapping costs at the times of the last, damped, and new times from that.
            took = self._seen.lasts.copy()
            if not self._relax(now):
                break
            swings = np.abs(self._seen.lasts - took).sum(axis=0) / self._extent.end / len(self._ranks)
            self._seen.lasts += (took - self._seen.lasts) * self._damped_by
            now = self._pass()
            last, effect_s = effect_s, self._effects(now)
            moved, before = effect_s - last, moved
            # Settled: it hardly moves, or its moves shrink to a limit that is near; and no times swing beneath it.
            limit = _limit(effect_s, moved, before)
            enough = np.maximum(SETTLED * self.simulated_s, SETTLED_EFFECT * np.abs(effect_s))
            near = (np.abs(moved) <= AHEAD * enough) & (np.abs(limit - effect_s) <= enough)
            settled = ((np.abs(moved) <= enough) | near) & (swings <= MOST_SWINGS * self.simulated_s)
            unsettled = ~done[columns] | (columns == 0)
            valid[columns[unsettled]] = (settled & self._is_as_seen(now, effect_s))[unsettled]
            more_s[columns[unsettled]] = np.where(np.isfinite(limit), limit, effect_s)[unsettled]
            self._mark_unmoved(now, columns, unsettled & settled, more_s, valid)
            done[columns] |= settled
            if done.all():
                break
            # Columns are left out when half of them have settled: to copy all arrays for each would cost more.
            left = np.flatnonzero(~done[columns] | (columns == 0))
            if 2 * len(left) <= len(columns):
                self._leave_out_but(left)
                narrow(now, ("end", "begin", "wire"), left)
                columns, effect_s, moved = columns[left], effect_s[left], moved[left]
        self._mark_unmoved(now, columns, ~done[columns], more_s, valid)
        # Other nodes than the run has, or collectives that are carried out otherwise.
        changed = self.prices.another | np.array([each.silent for each in self.prices.assumed])
        met = any(each.met for each in self._copies)
        return more_s, valid & ~(changed | (met if self._messages is None else self._messages.another_way))

    def _is_as_seen(self, now: PassTimes, effects: Columns) -> NDArray[np.bool_]:
        """Return in which columns collectives meet others as in the run; in none where its own period is missed."""
        faithful = abs(self._period_of(now.end)[0] - self.simulated_s) <= FAITHFUL * self.simulated_s
        if self._messages is None or not faithful:
            return np.full(self._columns, faithful)
        most = np.full(self._columns, MET_OTHERS_APART if goes_apart(self._run) else MET_OTHERS)
        if self._run.schedule.place is not None:
            most[np.abs(effects) > SMALL_EFFECT * self.simulated_s] = MET_OTHERS_STAGED
        meets: NDArray[np.bool_] = self._messages.measure_changed_overlap() <= most
        return meets

    def _mark_unmoved(
        self,
        now: PassTimes,
        columns: NDArray[np.intp],
        among: NDArray[np.bool_],
        more_s: Columns,
        valid: NDArray[np.bool_],
    ) -> None:
        """Mark columns valid in which devices and messages do what they do in the run's own, whatever hosts do.

        A column may be so although overlaps of its ranks have not settled.

        Args:
            columns: of these times.
            among: which of them are looked at.
        """
        streams = [
            nodes for rank in self._dependencies.graph.ranks for nodes in (rank.compute, *rank.lanes, rank.delays)
        ]
        rows = self._dependencies.row[np.array([node for nodes in streams for node in nodes], dtype=np.intp)]
        if not len(rows):
            return
        own = now.end[rows, 0]
        for column in np.flatnonzero(among):
            if np.abs(now.end[rows, column] - own).max() <= ROUNDING * self.simulated_s:
                more_s[columns[column]], valid[columns[column]] = 0.0, True

    def _leave_out_but(self, columns: NDArray[np.intp]) -> None:
        self._columns, self._assumed = len(columns), [self._assumed[column] for column in columns]
        self._seen.leave_out_but(columns)
        for rank, copies in zip(self._ranks, self._copies, strict=True):
            rank.leave_out_but(columns)
            narrow(copies, ("alone_s",), columns)
        if self._messages is not None:
            self._messages.leave_out_but(columns)

    def _effects(self, now: PassTimes) -> Columns:
        periods = self._period_of(now.end)
        more_s: Columns = periods - periods[0]
        return more_s

    def _pass(self) -> PassTimes:
        run, shape = self._run, self._seen.lasts.shape
        nothing: Columns = np.zeros(self._columns)
        stages = [[config.with_input(each.input).input_stage for each in self._assumed] for config in run.rank_configs]
        lanes = len(self._dependencies.lanes)
        now = PassTimes(
            end=np.zeros(shape),
            lasts=self._seen.lasts,
            begin=np.zeros(shape),
            wire=np.zeros(shape),
            late=self._seen.late,
            free=[[nothing] * run.shared.collectives.streams_per_group for _ in range(lanes)],
            due=[nothing for _ in stages],
            line=[[nothing if self._messages is None else self._messages.line_s, nothing] for _ in range(lanes)],
            loaders=[[Loader(each) for each in columns if each is not None] for columns in stages],
        )
        for operation in self._dependencies.operations:
            operation(now)
        return now

    def _relax(self, now: PassTimes) -> bool:
        """Let nodes take what overlapping costs them at these times; return whether any does."""
        horizon_s = 2.0 * float(now.end.max()) + 1e-9
        changed = [rank.relax(now, horizon_s) for rank in self._ranks]
        if self._messages is not None:
            changed.append(self._messages.relax(now, horizon_s))
        return any(changed)

    def _period_of(self, end: Columns) -> Columns:
        row = self._dependencies.row
        return np.asarray(period_of(self._run, self._extent, lambda node: end[row[node]]))
