"""What one rank computes beside its collectives, in columns: its nodes' seconds, and by what they are slowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ddpsim.collectives.copies import copies_of
from ddpsim.network.fairness import alone_s
from ddpsim.simulation.contention import MOST, slowdown_factor
from ddpsim.simulation.dependencies import Dependencies, Moments
from ddpsim.simulation.graph import NodeKind
from ddpsim.simulation.job_run import Columns, JobRun
from ddpsim.simulation.prices import Prices

_SHORT_S = 1e-12
"""What takes no longer has no share of anything."""

ROUNDING = 1e-9
"""Share by which times may differ, as sums of the same floating-point numbers do in another order."""


class Integral:
    """The integral of a rate over time in each column, from 0 on; the rate is constant between moments.

    Args:
        moments: ascending: (moments, columns).
        rates: from each moment to the next; after the last it is 0, as before the first.
        horizon_s: that no moment reaches.
    """

    def __init__(self, moments: Columns, rates: Columns, horizon_s: float) -> None:
        columns = moments.shape[1]
        self._shift = horizon_s * np.arange(columns)
        grown = np.zeros((len(moments) + 2, columns))
        np.cumsum(rates[:-1] * np.diff(moments, axis=0), axis=0, out=grown[2:-1])
        grown[-1] = grown[-2]
        at = np.zeros_like(grown)
        at[1:-1] = moments
        at[-1] = 0.999 * horizon_s
        at += self._shift
        self._at, self._grown = at.T.ravel(), grown.T.ravel()

    def until(self, moments: Columns) -> Columns:
        """Return the integral until `moments`: (any, columns)."""
        # One column after the other, for what is asked for in order is found soonest.
        asked = (moments + self._shift).T
        return np.interp(asked.ravel(), self._at, self._grown).reshape(asked.shape).T


def sort_changes(begin: Columns, end: Columns, *taken: Columns) -> tuple[Columns, ...]:
    """Return the moments at which something begins or ends, ascending, and after each how many go on and take how much.

    Args:
        begin, end: of each: (any, columns).
        taken: by each while it goes on, several amounts.
    """
    moments = np.concatenate([begin, end])
    order = np.argsort(moments, axis=0, kind="stable")
    amounts = (np.ones_like(begin), *taken)
    changes = (np.take_along_axis(np.concatenate([each, -each]), order, axis=0) for each in amounts)
    return np.take_along_axis(moments, order, axis=0), *(np.cumsum(each, axis=0) for each in changes)


def mean_factors(begin: Columns, end: Columns, moments: Columns, factors: Columns, horizon_s: float) -> Columns:
    """Return by what factor each of some intervals is longer than its work, under factors that change at `moments`."""
    lost = Integral(moments, 1 - 1 / factors, horizon_s)
    took_s = end - begin
    work_s = took_s - (lost.until(end) - lost.until(begin))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((took_s > _SHORT_S) & (work_s > 0), took_s / work_s, 1.0)


def is_in_flight(
    moments: Columns, begin: Columns, end: Columns, horizon_s: float, side: Literal["left", "right"] = "left"
) -> NDArray[np.bool_]:
    """Return whether something is in flight at `moments`: it has begun before and ends after.

    Args:
        begin, end: ascending, each by itself.
        horizon_s: that no moment reaches.
        side: `right` where what begins just then counts.
    """
    shift = horizon_s * np.arange(begin.shape[1])
    asked = moments + shift
    begun, over = ((each + shift).T.ravel() for each in (begin, end))
    found: NDArray[np.bool_] = np.searchsorted(begun, asked, side) > np.searchsorted(over, asked, "right")
    return found


def integrate_busy(begin: Columns, end: Columns, horizon_s: float) -> Callable[[Columns], Columns]:
    """Return what tells until a moment how long one after another of some intervals has lasted."""
    moments = np.empty((2 * len(begin), begin.shape[1]))
    moments[0::2], moments[1::2] = begin, end
    rates = np.zeros_like(moments)
    rates[0::2] = 1.0
    return Integral(moments, rates, horizon_s).until


def fair_rates(begin: Columns, end: Columns, horizon_s: float) -> Columns:
    """Return at what rate, in the mean, each of some intervals goes on where all that go on have equal parts of it."""
    moments, count = sort_changes(begin, end)
    rates = 1 / np.maximum(count, 1.0)
    until = Integral(moments, rates, horizon_s).until
    return 1 - share((end - begin) - (until(end) - until(begin)), end - begin)


def share(part_s: Columns, whole_s: Columns) -> Columns:
    """Return which part of times something lasted, between 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(whole_s > _SHORT_S, part_s / whole_s, 0.0)
    clipped: Columns = np.clip(found, 0.0, 1.0)
    return clipped


ALONE = 1.001
"""Factor on the time of a copy of a batch by itself up to which nothing shared its links."""

_SLOWED = (NodeKind.COMPUTE, NodeKind.SERVE, NodeKind.LASTING)
_NOTHING_S = 1e-12


def narrow(made: object, names: Sequence[str], columns: NDArray[np.intp]) -> None:
    """Let attributes have some of their columns only."""
    for name in names:
        setattr(made, name, getattr(made, name)[..., columns])


@dataclass(slots=True, eq=False)
class RetimedRun:
    """What a run has shown, and what its nodes take under several assumptions.

    Attributes:
        order: of the part of its graph that is told.
        prices: the first column of which is the run's.
        end_s: when the node of each row ended in the run.
        lasts: what it takes now: (rows, assumptions).
        late: how long a collective waits for multiprocessors before it begins.
    """

    run: JobRun
    order: Dependencies
    prices: Prices
    end_s: Columns
    lasts: Columns
    late: Columns

    @property
    def columns(self) -> int:
        """How many assumptions there are."""
        return len(self.lasts[0])

    def leave_out_but(self, columns: NDArray[np.intp]) -> None:
        """Go on with some columns only."""
        narrow(self, ("lasts", "late"), columns)


@dataclass(slots=True, eq=False)
class BatchCopies:
    """The copies of batches to one rank's device.

    Attributes:
        rows: of each.
        alone_s: what it takes with nothing on its links, by assumption.
        seen: when each began and ended in the run.
    """

    rows: NDArray[np.intp]
    before: NDArray[np.intp]
    queued: NDArray[np.intp]
    alone_s: Columns
    seen: tuple[Columns, Columns]

    @classmethod
    def of(cls, seen: RetimedRun, number: int) -> BatchCopies:
        """Return those of a rank, which take as many times longer than by themselves as in the run."""
        order, times = seen.order, seen.run.times
        rank, setting = order.graph.ranks[number], seen.run.settings[number]
        streams = (rank.copies, rank.compute if setting.input_stage is not None else [])
        kinds = order.graph.kind
        found = [(node, at) for nodes in streams for at, node in enumerate(nodes) if kinds[node] is NodeKind.COPY]
        nodes, places = (np.array(each, dtype=np.intp) for each in (zip(*found, strict=True) if found else ((), ())))
        begin, end = (np.array([each[node] for node, _ in found])[:, None] for each in (times.begin, times.end))
        copied = bool(found) and not setting.execution.one_thread
        alone_s = np.tile(_copied_s(seen, number) if copied else np.zeros(seen.columns), (len(nodes), 1))
        rows = order.row[nodes]
        made = cls(rows, np.where(places > 0, rows - 1, 0), order.row[order.queued[nodes]], alone_s, (begin, end))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (end - begin) / alone_s[:, :1]
        seen.lasts[made.rows] = alone_s * np.where(np.isfinite(ratio), ratio, 1.0)
        return made

    @property
    def met(self) -> bool:
        """Whether something shared a copy's links."""
        begin, end = self.seen
        took_s, alone_s = end - begin, self.alone_s[:, :1]
        return bool((np.isfinite(took_s) & (alone_s > 0) & (took_s > ALONE * alone_s)).any())

    def begin(self, end: Columns) -> Columns:
        """Return when each begins, where what is before it has ended at `end`."""
        return np.maximum(end[self.before], end[self.queued])


def _copied_s(seen: RetimedRun, number: int) -> Columns:
    """Return what copying a batch to a rank's device takes by itself, by assumption."""
    run = seen.run
    stage = run.settings[number].input_stage
    if stage is None or stage.copy_bytes == 0:
        return np.zeros(seen.columns)
    together = range(run.job.placement.world_size) if stage.in_turn else run.draws[number].stands_for
    placements = {id(job.placement): job.placement for job in seen.prices.jobs}
    known = {key: alone_s(*copies_of(each, together, stage)) for key, each in placements.items()}
    return np.array([known[id(job.placement)] for job in seen.prices.jobs])


class RankWork:
    """The work of one rank.

    Args:
        seen: gets what its nodes take, slowed as much as they were in the run.
        number: place of the rank in the graph.
    """

    def __init__(self, seen: RetimedRun, number: int) -> None:
        order, prices = seen.order, seen.prices.ranks[number]
        rank = order.graph.ranks[number]
        self._seen, self._thread = seen, rank.one_thread
        nodes = np.array([*rank.host, *rank.compute, *rank.delays])
        # How far a completion lags behind its hook is no time that the device works.
        lasting = order.kind[nodes] != NodeKind.NOT_BEFORE
        seen.lasts[order.row[nodes]] = seen.prices.seconds[nodes] * lasting[:, None]
        self.copies = BatchCopies.of(seen, number)
        stream = np.array(rank.host if self._thread else rank.compute, dtype=np.intp)
        places = np.flatnonzero(np.isin(order.kind[stream], _SLOWED))
        work, kinds = stream[places], order.kind[stream[places]]
        self._work, self._queued = order.row[work], order.row[order.queued[work]]
        self._before = np.where(places > 0, self._work - 1, 0)
        self._seconds = seen.prices.seconds[work]
        self._serves, busy = kinds != NodeKind.COMPUTE, kinds != NodeKind.SERVE
        self._busy = slice(None) if busy.all() else np.flatnonzero(busy)
        collectives = [node for lane in rank.lanes for node in lane]
        self._flights = order.row[np.array(collectives, dtype=np.intp)]
        self._copy_slowdown = np.array([each.copy_slowdown for each in seen.prices.costs])
        self._taken: tuple[Columns, Columns]
        self._slowdown(number, collectives)
        self._late_s = prices.late_s
        self._known: tuple[Columns, Columns, Columns] | None = None
        self._scale_to_seen(collectives)

    def leave_out_but(self, columns: NDArray[np.intp]) -> None:
        """Go on with some columns only."""
        narrow(self, ("_seconds", "_copy_slowdown", "_fixed", "_tail", "_late_s"), columns)
        narrow(self.copies, ("alone_s",), columns)
        many, bandwidth = self._taken
        self._taken, self._known = (many[:, columns], bandwidth[:, columns]), None

    def _slowdown(self, number: int, collectives: Sequence[int]) -> None:
        """Find what collectives take of the rank's processor in each column, or the factor that is known."""
        run, prices = self._seen.run, self._seen.prices
        setting, costs = run.settings[number], prices.ranks[number].costs
        known = [each.compute_slowdown_fixed for each in costs]
        self._fixed = np.where(known, [each.compute_slowdown for each in costs], np.nan)
        self._share = setting.workload.arithmetic_share
        self._tail = np.array([each.tail_share for each in costs])
        nothing = np.zeros((len(collectives), len(costs)))
        self._taken = nothing, nothing
        if known[0] or not collectives:
            return
        distinct = list({id(each): each for each in prices.shared}.values())
        columns = [distinct.index(each) for each in prices.shared]
        slowdowns = [each.slowdown(setting) for each in distinct]
        found = [run.graph.collectives[node] for node in collectives]
        rows = {each.key: (row, each) for row, each in enumerate({each.key: each for each in found}.values())}
        taken = [[slowdown.taken(each) for slowdown in slowdowns] for _, each in rows.values()]
        many, bandwidth = (
            np.array([[getattr(each, name) for each in row] for row in taken])[:, columns]
            for name in ("multiprocessors", "bandwidth")
        )
        bandwidth /= np.array([prices.wire(each.size_bytes) for _, each in rows.values()])
        each_row = [rows[each.key][0] for each in found]
        self._taken = (
            (many * _divide_by_first([each.channel_multiprocessors for each in costs]))[each_row],
            (bandwidth * _divide_by_first([each.memory_passes for each in costs]))[each_row],
        )

    def _scale_to_seen(self, collectives: Sequence[int]) -> None:
        """Let work take as many times its own seconds as it did in the run, and collectives be late that were."""
        times, own_late_s = self._seen.run.times, self._late_s[0]
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

    def relax(self, now: Moments, horizon_s: float) -> bool:
        """Let work take what the collectives in flight at these moments cost it; return whether they cost anything."""
        if self._late_s.any() and len(self._flights) and len(self._work):
            self._delay_late(now, horizon_s)
        disturbed = bool((self._fixed != 1).any())
        served = bool(self._serves.any() and (self._copy_slowdown != 1).any())
        if not len(self._work) or not len(self._flights) or not (disturbed or served):
            return False
        begin, end = self._work_at(now.end)
        flights, found = (now.begin[self._flights], now.end[self._flights]), self._seconds
        if disturbed:
            moments, factors = self._factors(*flights)
            found = found * mean_factors(begin, end, moments, factors, horizon_s)
        if self._serves.any():
            begun, over = (np.sort(each, axis=0) for each in flights)
            flying = is_in_flight(begin[self._serves], begun, over, horizon_s)
            slowed = np.where(flying, self._copy_slowdown, 1.0)
            found = found.copy()
            found[self._serves] = self._seconds[self._serves] * slowed
        self._seen.lasts[self._work] = found
        return True

    def _delay_late(self, now: Moments, horizon_s: float) -> None:
        """Let those collectives wait for multiprocessors that come upon computation."""
        ready = now.begin[self._flights] - self._seen.late[self._flights]
        computed = is_in_flight(ready, *self.find_busy(now.end), horizon_s, "right")
        self._seen.late[self._flights] = np.where(computed, self._late_s, 0.0)

    def _factors(self, begin: Columns, end: Columns) -> tuple[Columns, Columns]:
        """Return the moments at which collectives begin and end, and the factor on computing time from each on."""
        moments, count, multiprocessors, bandwidth = sort_changes(begin, end, *self._taken)
        tail = np.where(multiprocessors > _NOTHING_S, self._tail, 0.0)
        derived = slowdown_factor(self._share, tail, np.minimum(multiprocessors, MOST), np.minimum(bandwidth, MOST))
        beside = np.where(np.isnan(self._fixed), derived, self._fixed)
        return moments, np.where(count > 0.5, beside, 1.0)


def _divide_by_first(values: Sequence[float]) -> Columns:
    """Return values over the first of them; 0 where that is none."""
    return np.array(values) / values[0] if values[0] else np.zeros(len(values))
