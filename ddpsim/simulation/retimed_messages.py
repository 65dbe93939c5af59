"""What collectives take, in columns: their transports' times, beside computation and each other as the run saw them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.transport import AlgorithmChoice
from ddpsim.operations import Operation
from ddpsim.simulation.communication import Communication
from ddpsim.simulation.dependencies import Moments
from ddpsim.simulation.graph import BUFFERS, Collective
from ddpsim.simulation.job_run import Columns, JobRun
from ddpsim.simulation.prices import Prices
from ddpsim.simulation.retimed_work import RankWork, RetimedRun, busy_until, fair_rates, share
from ddpsim.simulation.servers import send_s

Key = tuple[str, int, int]
"""Operation, bytes and lane: what tells one collective's time from another's."""


def key_of(collective: Collective) -> Key:
    """Return what tells the time of a collective."""
    return str(collective.operation), collective.size_bytes, collective.lane


class CollectiveTimes:
    """Times of the distinct collectives of a run under several assumptions.

    Args:
        run: whose transports they go by.
        prices: of DDP's costs.
        collectives: one of each kind; rows are in their order.
    """

    def __init__(self, run: JobRun, prices: Prices, collectives: Sequence[Collective]) -> None:
        self._run = run
        self.rows = {key_of(collective): row for row, collective in enumerate(collectives)}
        costs, shared = prices.costs, prices.shared
        hops = [tuple(self._group(each, run.shared).transport.hops) for each in collectives]
        known = {each: [cost.slowed_by(each) for cost in costs] for each in dict.fromkeys(hops)}
        slowed = np.array([known[each] for each in hops])
        steps = np.maximum(np.array([each.step_slowdown for each in costs]) / slowed, 1.0)
        distinct = list({id(each): each for each in shared}.values())
        columns = [distinct.index(each) for each in shared]
        told = np.array([[self._demand(each, by) for by in distinct] for each in collectives])[:, columns]
        latency, stall, links, threads, slow = np.moveaxis(told, -1, 0)
        self.another_choice = np.zeros(len(columns), dtype=bool)
        if len(distinct) > 1:
            chosen = [[self._choice(each, by) for by in distinct] for each in collectives]
            self.another_choice[:] = [any(row[each] != row[columns[0]] for row in chosen) for each in columns]
        self._wire = np.array([prices.wire(self._sized(collective)) for collective in collectives])
        self.latency_s: Columns = latency * self._wire
        self._idle_s: Columns = (stall + np.maximum(links, threads)) * self._wire
        busy = stall + np.where(slow > 0, np.maximum(links, threads * steps) * slowed, np.maximum(links, threads))
        self._busy_s: Columns = busy * self._wire
        self.alone_s: Columns = self.latency_s + self._idle_s
        floors = [each.broadcast_s for each in costs]
        self.floor_s: Columns = np.array(
            [floors if collective.operation == BUFFERS else [0.0] * len(costs) for collective in collectives]
        )
        self.busy_matters = bool((self._busy_s != self._idle_s).any())

    def bytes_s(self, rows: Columns, busy: Columns) -> Columns:
        """Return how long bytes are on their way, of which computing goes on beside them for the share `busy`."""
        idle_s, busy_s = self._idle_s[rows], self._busy_s[rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            slower = 1 / ((1 - busy) / idle_s + busy / busy_s)
        return np.where(idle_s > 0, slower, 0.0)

    def _choice(self, collective: Collective, shared: Communication) -> AlgorithmChoice:
        buffers = collective.operation == BUFFERS
        operation = Operation.BROADCAST if buffers else Operation(collective.operation)
        return self._group(collective, shared).choice(self._sized(collective), operation)

    def _group(self, collective: Collective, shared: Communication) -> Collectives:
        """Return what carries a collective."""
        world = shared.lanes is None or collective.operation == BUFFERS
        return shared.collectives if shared.lanes is None or world else shared.lanes.groups[collective.lane]

    def _sized(self, collective: Collective) -> int:
        lanes = self._run.shared.lanes
        if lanes is None or collective.operation == BUFFERS:
            return collective.size_bytes
        return lanes.together[collective.lane] * collective.size_bytes

    def _demand(self, collective: Collective, shared: Communication) -> tuple[float, float, float, float, float]:
        lanes, group, buffers = shared.lanes, self._group(collective, shared), collective.operation == BUFFERS
        operation = Operation.BROADCAST if buffers else Operation(collective.operation)
        demand, capacities = group.transport.demand(operation, self._sized(collective)), group.transport.capacities
        size_bytes, latency_s = demand.size_bytes, demand.latency_s
        links_s = size_bytes / min(demand.alone(capacities), demand.rate_limit)
        threads_s = size_bytes / demand.host_limit
        slowed = self._run.job.options.fidelity != "closed" and bool(demand.loads) and size_bytes > 0
        if lanes is not None and not buffers and lanes.lines[collective.lane] is not None:
            latency_s = 0.0
        return latency_s, demand.stall_s, links_s, threads_s, float(slowed and math.isfinite(links_s))


_ROUNDING = 1e-9

_MET = 0.02
"""Share of the links that others have from which on it is told by a run what they cost."""


class RetimedCollectives:
    """The collectives for which all ranks of a run meet.

    Args:
        seen: gets what they take.
        ranks: whose computation slows them.
    """

    def __init__(self, seen: RetimedRun, ranks: Sequence[RankWork]) -> None:
        self._seen, self._ranks = seen, ranks
        run, rows = seen.run, seen.rows
        self._all = [np.array([rows.of[node] for lane in streams[3] for node in lane]) for streams in rows.streams]
        nodes = [node for lane in rows.streams[0][3] for node in lane]
        self._collectives = [run.graph.collectives[node] for node in nodes]
        distinct = {key_of(each): each for each in self._collectives}
        self._times = CollectiveTimes(run, seen.prices, list(distinct.values()))
        self._kind = np.array([self._times.rows[key_of(each)] for each in self._collectives])
        self.line_s = np.zeros(seen.columns)
        if run.shared.lanes is not None and any(run.shared.lanes.lines):
            ranks_of_all = run.job.placement.world_size
            sends_s = [send_s(each.collectives, ranks_of_all) for each in seen.prices.shared]
            self.line_s = np.array(sends_s) * seen.prices.wire(ranks_of_all)
        wire = np.array([run.times.wire.get(node, np.nan) for node in nodes])
        self._floor = np.maximum(self._times.floor_s[self._kind], self._beside_others(wire, seen.end_s[self._all[0]]))
        self._links = self._shared_links()
        self._ratio, self._seen_busy, seen_rates = self._seen_ratio(wire)
        self._part, self._seen_rates, self._rates_now = self._parts(seen_rates), seen_rates, seen_rates
        self._set(self._alone(self._seen_busy), seen_rates)

    def relax(self, now: Moments, horizon_s: float) -> bool:
        """Let collectives take what the computation beside them costs at these moments; return whether it does."""
        if not self._times.busy_matters and not self._links:
            return False
        rows = self._all[0]
        begin, end = now.wire[rows] + self._times.latency_s[self._kind], now.end[rows]
        busy = self._busy(now.end, begin, end, horizon_s) if self._times.busy_matters else np.zeros_like(begin)
        self._rates_now = self._rates(begin, end, horizon_s)
        self._set(self._alone(busy), self._rates_now)
        return True

    @property
    def another_way(self) -> NDArray[np.bool_]:
        """In which columns a collective is carried out by another algorithm, protocol or number of channels.

        And those of other transports, where collectives share links: while one stalls, others move.
        """
        if not self._links:
            return self._times.another_choice
        others = [each is not self._seen.run.shared for each in self._seen.prices.shared]
        found: NDArray[np.bool_] = self._times.another_choice | np.array(others)
        return found

    def changed_overlap(self) -> Columns:
        """Return for which share of their time collectives share links otherwise than the run saw."""
        lasts = self._seen.lasts[self._all[0]]
        moved = np.abs(self._part * (self._rates_now - self._seen_rates)) * lasts
        return np.asarray(moved.sum(axis=0) / np.maximum(lasts.sum(axis=0), _ROUNDING))

    def _shared_links(self) -> list[Columns]:
        """Return the places of collectives that may be on links at once: of each network where it has several."""
        run = self._seen.run
        lanes, world = run.shared.lanes, run.shared.collectives
        if run.job.options.fidelity == "closed":
            return []
        found: dict[int, list[int]] = {}
        streams: dict[int, set[int]] = {}
        for place, each in enumerate(self._collectives):
            group = world if lanes is None or each.operation == BUFFERS else lanes.groups[each.lane]
            found.setdefault(id(group.network), []).append(place)
            streams.setdefault(id(group.network), set()).add(each.lane)
        several = world.streams_per_group > 1
        return [np.array(places) for key, places in found.items() if several or len(streams[key]) > 1]

    def _rates(self, begin: Columns, end: Columns, horizon_s: float) -> Columns:
        """Return which part of the links each has, in the mean, where those on them at once have equal parts."""
        rates = np.ones_like(begin)
        for places in self._links:
            rates[places] = fair_rates(begin[places], end[places], horizon_s)
        return rates

    def _parts(self, seen_rates: Columns) -> Columns:
        """Return how much of what equal parts would cost each was seen to pay; the usual where it met nobody."""
        met = seen_rates < 1 - _MET
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(met, np.clip((1 - 1 / self._ratio) / (1 - seen_rates), 0.0, 1.0), 1.0)
        usual = float(np.median(parts[met])) if met.any() else 1.0
        found: Columns = np.where(met, parts, usual)
        self._ratio = self._ratio * (1 - found * (1 - seen_rates))
        return found

    def _set(self, alone_s: Columns, rates: Columns) -> None:
        lasts = np.maximum(self._ratio * alone_s / (1 - self._part * (1 - rates)), self._floor)
        for rows in self._all:
            self._seen.lasts[rows] = lasts

    def _alone(self, busy: Columns) -> Columns:
        """Return what collectives take with no others beside them, where computation goes on for the share `busy`."""
        alone_s: Columns = self._times.latency_s[self._kind] + self._times.bytes_s(self._kind, busy)
        return alone_s

    def _busy(self, ends: Columns, begin: Columns, end: Columns, horizon_s: float) -> Columns:
        """Return for which share of intervals a rank is busy: of the rank that is so most."""
        most = np.zeros_like(begin)
        for rank in self._ranks:
            began, over = rank.busy(ends)
            if len(began):
                until = busy_until(began, over, horizon_s)
                most = np.maximum(most, share(until(end) - until(begin), end - begin))
        return most

    def _seen_ratio(self, wire: Columns) -> tuple[Columns, Columns, Columns]:
        """Return by what factor each took longer in the run than with no others beside it, 1 where that is not known.

        Then for which share of it ranks were busy, and which part of the links it had where those on them are alike.
        """
        end = self._seen.end_s[self._all[0]]
        begin, took_s = wire, end - wire
        if self.line_s.any():
            begin = self._sent(wire, end)
            took_s = end - begin
        known = np.isfinite(took_s)
        begun = (begin + self._times.latency_s[self._kind][:, 0])[:, None]
        busy = np.zeros((len(wire), 1))
        ends = np.where(np.isfinite(self._seen.end_s), self._seen.end_s, 0.0)[:, None]
        horizon_s = 2 * float(ends.max()) + 1e-9
        begun, over = np.where(known[:, None], begun, 0.0), np.where(known, end, 0.0)[:, None]
        if self._times.busy_matters:
            busy = self._busy(ends, begun, over, horizon_s)
        alone_s = self._alone(busy)[:, 0]
        floor_s = self._floor[:, 0]
        bound = (floor_s > alone_s) & (took_s <= floor_s * (1 + _ROUNDING))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(known & ~bound & (alone_s > 0), took_s / alone_s, 1.0)
        return ratio[:, None], busy, self._rates(begun, over, horizon_s)

    def _sent(self, wire: Columns, end: Columns) -> Columns:
        """Return when each message in line left: after its latency, and the one before it."""
        lanes = self._seen.run.shared.lanes
        sent = wire.copy()
        last: dict[int, float] = {}
        for place, collective in enumerate(self._collectives):
            lane = collective.lane
            if lanes is not None and lanes.lines[lane] is not None:
                sent[place] = max(wire[place] + self.line_s[0], last.get(lane, 0.0))
                last[lane] = end[place]
        return sent

    def _beside_others(self, wire: Columns, end: Columns) -> Columns:
        """Return the least time of each beside those that were in flight when it began, as `ConcurrentCollectives`."""
        seen, prices = self._seen, self._seen.prices
        ranks = seen.run.job.placement.world_size
        pair, behind = (np.array([getattr(each, name) for each in prices.costs]) for name in ("pair_s", "behind_s"))
        least = np.zeros((len(wire), seen.columns))
        if ranks == 1 or not (pair.any() or behind.any()):
            return least
        order = sorted(range(len(wire)), key=lambda place: wire[place])
        for at, place in enumerate(order):
            others = [other for other in order[:at] if end[other] > wire[place]]
            if not others:
                continue
            longest = np.max([self._by_itself(self._collectives[other]) for other in others], axis=0)
            least[place] = np.maximum(pair, np.minimum(behind, longest)) * self._steps(self._collectives[place], ranks)
        return least

    def _by_itself(self, collective: Collective) -> Columns:
        operation = Operation.BROADCAST if collective.operation == BUFFERS else Operation(collective.operation)
        shared = self._seen.prices.shared
        alone_s = np.array([each.collectives.estimate_s(collective.size_bytes, operation) for each in shared])
        found: Columns = alone_s * self._seen.prices.wire(collective.size_bytes)
        return found

    def _steps(self, collective: Collective, ranks: int) -> float:
        """Return the steps of a collective over those of an allreduce of all ranks, at most 1."""
        whole = Operation.ALLREDUCE.steps(ranks)
        if collective.operation == BUFFERS:
            return min(1.0, (ranks - 1).bit_length() / whole)
        lanes = self._seen.run.shared.lanes
        steps = Operation(collective.operation).steps(ranks) if lanes is None else lanes.steps(collective)
        return min(1.0, steps / whole)
