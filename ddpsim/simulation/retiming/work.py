"""What one rank computes beside its collectives, in columns: its nodes' seconds, and by what they are slowed."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray

from ddpsim.simulation.contention import MOST, slowdown_factor
from ddpsim.simulation.graph import NodeKind, beside_computing
from ddpsim.simulation.retiming.dependencies import Moments, RetimedRun, narrow
from ddpsim.simulation.retiming.intervals import Columns, is_in_flight, mean_factors, sort_changes
from ddpsim.simulation.retiming.prices import Prices

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
        slowdowns = [each.slowdown(setting.costs, setting.gpu, self._share) for each in distinct]
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
        copying = bool(self._serves.any() and (self._copy_slowdown != 1).any())
        if not len(self._work) or not len(self._flights) or not (disturbed or copying):
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
        begin, end = self._work_at(now.end)
        computed = is_in_flight(ready, begin[self._computing], end[self._computing], horizon_s, "right")
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
