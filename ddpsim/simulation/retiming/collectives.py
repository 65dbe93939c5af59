"""The collectives of a run under other constants: what each takes beside the others and the computation it meets.

A collective's time is `_ratio` times what it takes alone, over what is left of the links: `lasts = ratio * alone / (1 -
part * (1 - rate))`. `alone` depends on the share of its time in which ranks compute (`CollectivePrices.bytes_s`),
`rate` is its mean part of links where those on them at once share evenly, `part` how much of that loss it was seen to
pay, and `ratio` what the run shows beyond all this. `part` and `ratio` are of the run and kept; the others are found
anew in each pass (`RetimedCollectives.relax`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ddpsim.collectives.copies import copies_of
from ddpsim.collectives.network.fairness import alone_s
from ddpsim.common.operation import Operation
from ddpsim.simulation.graph import NodeKind, RankGraph
from ddpsim.simulation.job_run import JobRun
from ddpsim.simulation.lanes import send_s
from ddpsim.simulation.retiming.dependencies import PassTimes, RetimedRun, goes_apart, is_in_line, narrow
from ddpsim.simulation.retiming.intervals import Columns, fair_rates, integrate_busy, share
from ddpsim.simulation.retiming.prices import CollectivePrices, Prices, SentCollective

_MET = 0.02
"""Share of the links that others must have had in the run, for its times to show what sharing costs."""

ROUNDING = 1e-9
"""Share by which times may differ, as sums of the same floating-point numbers do in another order."""

ALONE = 1.001
"""Factor on the time of a copy of a batch by itself up to which nothing shared its links."""


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
    def of(cls, seen: RetimedRun, prices: Prices, number: int) -> BatchCopies:
        """Return those of a rank, which take as many times longer than by themselves as in the run."""
        order, times = seen.order, seen.run.times
        rank, rank_config = order.graph.ranks[number], seen.run.rank_configs[number]
        streams = (rank.copies, rank.compute if rank_config.input_stage is not None else [])
        kinds = order.graph.kind
        copied_at = [(node, at) for nodes in streams for at, node in enumerate(nodes) if kinds[node] is NodeKind.COPY]
        nodes, places = (
            np.array(each, dtype=np.intp) for each in (zip(*copied_at, strict=True) if copied_at else ((), ()))
        )
        begin, end = (np.array([each[node] for node, _ in copied_at])[:, None] for each in (times.begin, times.end))
        copied = bool(copied_at) and not rank_config.execution.one_thread
        alone_s = np.tile(_copied_s(seen.run, prices, number) if copied else np.zeros(seen.columns), (len(nodes), 1))
        rows = order.row[nodes]
        copies = cls(rows, np.where(places > 0, rows - 1, 0), order.row[order.queued[nodes]], alone_s, (begin, end))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = (end - begin) / alone_s[:, :1]
        seen.lasts[copies.rows] = alone_s * np.where(np.isfinite(ratio), ratio, 1.0)
        return copies

    @property
    def met(self) -> bool:
        """Whether something shared a copy's links."""
        begin, end = self.seen
        took_s, alone_s = end - begin, self.alone_s[:, :1]
        return bool((np.isfinite(took_s) & (alone_s > 0) & (took_s > ALONE * alone_s)).any())

    def begin(self, end: Columns) -> Columns:
        """Return when each begins, where what is before it has ended at `end`."""
        return np.maximum(end[self.before], end[self.queued])


def _copied_s(run: JobRun, prices: Prices, number: int) -> Columns:
    """Return what copying a batch to a rank's device takes by itself, by assumption."""
    stage = run.rank_configs[number].input_stage
    if stage is None or stage.copy_bytes == 0:
        return np.zeros(len(prices.jobs))
    together = range(run.job.placement.world_size) if stage.in_turn else run.simulated_ranks[number].stands_for
    known: dict[tuple[int, float], float] = {}
    for job, assumed in zip(prices.jobs, prices.assumed, strict=True):
        if (key := (id(job.placement), assumed.input)) not in known:
            scaled = stage.scale(assumed.input)
            size_bytes, rate_limit = scaled.copy_bytes, scaled.limit_Bps
            copied = copies_of(job.placement, together, size_bytes, rate_limit=rate_limit, in_turn=stage.in_turn)
            known[key] = alone_s(*copied) if scaled.copy_bytes else 0.0
    return np.array(
        [known[id(job.placement), assumed.input] for job, assumed in zip(prices.jobs, prices.assumed, strict=True)]
    )


FindBusy = Callable[[Columns], tuple[Columns, Columns]]
"""Says when a rank's processor began and ended to be busy, where nodes have ended as given."""


class RetimedCollectives:
    """The collectives of a run, and the copies of batches that are on links with them.

    Ranks meet for them, or send each its own to servers, whose links they share with what others send the same way.

    Args:
        seen: gets what they take.
        prices: of them.
        busy: by rank, when its computation slows them.
        copies: by rank, those of its batches.
    """

    def __init__(
        self, seen: RetimedRun, prices: Prices, busy: Sequence[FindBusy], copies: Sequence[BatchCopies]
    ) -> None:
        self._seen, self._prices, self._busy = seen, prices, busy
        run, ranks_of = seen.run, seen.order.graph.ranks
        self._apart = goes_apart(run)
        # Places: one a meeting of ranks, in the order of lanes; where ranks do not meet, one a rank's own message.
        met_by: list[list[bool]] = [[]]
        if self._apart:
            each_rank = [[node for lane in rank.lanes for node in lane] for rank in ranks_of]
            # By place, whose each is; None of those for which ranks meet.
            self._senders: list[int | None] = [number for number, nodes in enumerate(each_rank) for _ in nodes]
            each_rank = [[node for nodes in each_rank for node in nodes]]
        else:
            met_by, each_rank = _meetings(ranks_of)
            self._senders = [None] * len(each_rank[0])
        self._met_by = np.array(met_by, dtype=bool)
        self._all, nodes = [seen.order.row[nodes] for nodes in each_rank], each_rank[0]
        self._collectives = [run.graph.collectives[node] for node in nodes]
        sent = [SentCollective(each, sender) for each, sender in zip(self._collectives, self._senders, strict=True)]
        self._times = CollectivePrices(run, prices, list({each.key: each for each in sent}.values()))
        self._kind = np.array([self._times.rows[each.key] for each in sent])
        self.line_s = np.zeros(seen.columns)
        if any(is_in_line(run, lane) for lane in range(len(ranks_of[0].lanes))):
            ranks_of_all = run.job.placement.world_size
            sends_s = [send_s(each.collectives, ranks_of_all) for each in prices.shared]
            self.line_s = np.array(sends_s) * prices.wire(ranks_of_all)
        wire = np.array([run.times.wire.get(node, np.nan) for node in nodes])
        met = not self._apart and run.job.options.fidelity != "closed" and any(each.met for each in copies)
        self._copies = copies if met else []
        # What it takes at least, whatever the links do: broadcasts of buffers, and allreduces over gloo beside others.
        self._floor = self._times.floor_s[self._kind]
        if not self._apart:
            least_s = self._times.beside_others_s(self._collectives, wire, seen.end_s[self._all[0]])
            self._floor = np.maximum(self._floor, least_s)
        self._links = self._list_shared_links()
        # Last what the run shows of each beyond its price; then its price in each column is what it takes.
        self._ratio, self._seen_busy, seen_rates = self._seen_ratio(wire)
        self._part, self._seen_rates, self._rates_now = self._parts(seen_rates), seen_rates, seen_rates
        self._set_lasts(self._time_alone(self._seen_busy), seen_rates)

    def relax(self, now: PassTimes, horizon_s: float) -> bool:
        """Let collectives take what the computation at these times costs them; return whether it costs anything."""
        if not self._times.busy_matters and not self._links:
            return False
        rows = self._all[0]
        begin, end = now.wire[rows] + self._times.latency_s[self._kind], now.end[rows]
        busy = self._measure_busy(now.end, begin, end, horizon_s) if self._times.busy_matters else np.zeros_like(begin)
        begin = np.concatenate([begin, *(copies.begin(now.end) for copies in self._copies)])
        end = np.concatenate([end, *(now.end[copies.rows] for copies in self._copies)])
        self._rates_now = self._rates(begin, end, horizon_s)
        self._set_lasts(self._time_alone(busy), self._rates_now)
        return True

    def leave_out_but(self, columns: NDArray[np.intp]) -> None:
        """Go on with some columns only."""
        self._times.leave_out_but(columns)
        narrow(self, ("line_s", "_floor"), columns)

    @property
    def another_way(self) -> NDArray[np.bool_]:
        """In which columns a collective is carried out by another algorithm, protocol or number of channels.

        And those of other transports, where collectives share links: while one stalls, others move.
        """
        if not self._links:
            return self._times.another_choice
        others = [each is not self._seen.run.shared for each in self._prices.shared]
        changed: NDArray[np.bool_] = self._times.another_choice | np.array(others)
        return changed

    def measure_changed_overlap(self) -> Columns:
        """Return for which share of their time collectives share links otherwise than the run saw, or with copies."""
        lasts, count = self._seen.lasts[self._all[0]], len(self._collectives)
        moved = np.abs(self._part * (self._rates_now - self._seen_rates))[:count] * lasts
        return np.asarray(moved.sum(axis=0) / np.maximum(lasts.sum(axis=0), ROUNDING))

    def _list_shared_links(self) -> list[Columns]:
        """Return the places of what may be on links at once: of each network where it has several; copies come last."""
        run = self._seen.run
        world = run.shared.collectives
        if self._apart:
            ways: tuple[list[int], list[int]] = ([], [])
            for place, each in enumerate(self._collectives):
                ways[each.operation is Operation.REDUCE].append(place)
            return list(map(np.array, ways))
        if run.job.options.fidelity == "closed":
            return []
        places_on: dict[int, list[int]] = {}
        streams: dict[int, set[int]] = {}
        for place, each in enumerate(self._collectives):
            network = run.shared.lanes[each.lane].collectives.network
            places_on.setdefault(id(network), []).append(place)
            streams.setdefault(id(network), set()).add(each.lane)
        copied = range(len(self._collectives), len(self._collectives) + sum(len(each.rows) for each in self._copies))
        if copied:
            places_on.setdefault(id(world.network), []).extend(copied)
            streams.setdefault(id(world.network), set()).update((-1, -2))
        several = world.streams_per_group > 1
        return [np.array(places) for key, places in places_on.items() if several or len(streams[key]) > 1]

    def _rates(self, begin: Columns, end: Columns, horizon_s: float) -> Columns:
        """Return which part of the links each has, in the mean, where those on them at once have equal parts."""
        rates = np.ones_like(begin)
        for places in self._links:
            rates[places] = fair_rates(begin[places], end[places], horizon_s)
        return rates

    def _parts(self, seen_rates: Columns) -> Columns:
        """Return how much of what equal parts would cost each paid in the run; the median where it shared no links."""
        met = seen_rates < 1 - _MET
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = np.where(met, np.clip((1 - 1 / self._ratio) / (1 - seen_rates), 0.0, 1.0), 1.0)
        filled = np.empty_like(parts)
        count = len(self._collectives)
        for kind in (slice(count), slice(count, None)):
            known = parts[kind][met[kind]].tolist()
            filled[kind] = np.where(met[kind], parts[kind], median(known) if known else 1.0)
        self._ratio = self._ratio * (1 - filled * (1 - seen_rates))
        return filled

    def _set_lasts(self, alone_s: Columns, rates: Columns) -> None:
        lasts = self._ratio * alone_s / (1 - self._part * (1 - rates))
        count = len(self._collectives)
        at_least = np.maximum(lasts[:count], self._floor)
        for rows in self._all:
            self._seen.lasts[rows] = at_least
        for copies in self._copies:
            self._seen.lasts[copies.rows] = lasts[count : count + len(copies.rows)]
            count += len(copies.rows)

    def _time_alone(self, busy: Columns) -> Columns:
        """Return what messages take with no others beside them, where computation goes on for the share `busy`."""
        alone_s = self._times.latency_s[self._kind] + self._times.bytes_s(self._kind, busy)
        return np.concatenate([alone_s, *(copies.alone_s for copies in self._copies)])

    def _measure_busy(self, ends: Columns, begin: Columns, end: Columns, horizon_s: float) -> Columns:
        """Return for which share of intervals a rank is busy: the one that sends, or of all the one that is so most."""
        most = np.zeros_like(begin)
        for number, find_busy in enumerate(self._busy):
            began, over = find_busy(ends)
            mine = np.array(self._senders) == number if self._apart else self._met_by[number]
            own = slice(None) if mine.all() else np.flatnonzero(mine)
            if len(began):
                until = integrate_busy(began, over, horizon_s)
                most[own] = np.maximum(most[own], share(until(end[own]) - until(begin[own]), end[own] - begin[own]))
        return most

    def _seen_ratio(self, wire: Columns) -> tuple[Columns, Columns, Columns]:
        """Return by what factor each took longer in the run than with no others beside it, 1 where that is not known.

        Then for which share of it ranks were busy, and which part of the links it had where those on them are alike.
        """
        end = self._seen.end_s[self._all[0]]
        # Messages in line waited behind each other, which is no time that their own bytes took.
        begin, took_s = wire, end - wire
        if self.line_s.any():
            begin = self._find_sent(wire, end)
            took_s = end - begin
        begun = (begin + self._times.latency_s[self._kind][:, 0])[:, None]
        busy = np.zeros((len(wire), 1))
        ends = np.where(np.isfinite(self._seen.end_s), self._seen.end_s, 0.0)[:, None]
        horizon_s = 2 * float(ends.max()) + 1e-9
        over, floor_s = end[:, None], self._floor[:, 0]
        known = np.isfinite(took_s)
        begun, over = np.where(known[:, None], begun, 0.0), np.where(known[:, None], over, 0.0)
        if self._times.busy_matters:
            busy = self._measure_busy(ends, begun, over, horizon_s)
        alone_s = self._time_alone(busy)[:, 0]
        for copies in self._copies:
            began, ended = (np.where(np.isfinite(copies.seen[1]), each, 0.0) for each in copies.seen)
            begun, over = np.concatenate([begun, began]), np.concatenate([over, ended])
            took_s = np.concatenate([took_s, (copies.seen[1] - copies.seen[0])[:, 0]])
        floor_s = np.pad(floor_s, (0, len(took_s) - len(floor_s)))
        # What its least time bound says nothing of how much longer its bytes took.
        bound = (floor_s > alone_s) & (took_s <= floor_s * (1 + ROUNDING))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(np.isfinite(took_s) & ~bound & (alone_s > 0), took_s / alone_s, 1.0)
        return ratio[:, None], busy, self._rates(begun, over, horizon_s)

    def _find_sent(self, wire: Columns, end: Columns) -> Columns:
        """Return when each message in line left: after its latency, and the one before it."""
        sent = wire.copy()
        last: dict[tuple[int | None, int], float] = {}
        for place, (collective, sender) in enumerate(zip(self._collectives, self._senders, strict=True)):
            if is_in_line(self._seen.run, collective.lane):
                line = sender, collective.lane
                sent[place] = max(wire[place] + self.line_s[0], last.get(line, 0.0))
                last[line] = end[place]
        return sent


def _meetings(ranks: Sequence[RankGraph]) -> tuple[list[list[bool]], list[list[int]]]:
    """Return by rank whether it takes part in each collective, and its nodes; in place of one that has none, another's.

    Ranks have what they take part in on the same lanes, in the same order.
    """
    nodes: list[list[int]] = [[] for _ in ranks]
    there: list[list[bool]] = [[] for _ in ranks]
    for lane in range(len(ranks[0].lanes)):
        mine = [rank.lanes[lane] for rank in ranks]
        some = next((each for each in mine if each), [])
        for own, mine_all, has in zip(mine, nodes, there, strict=True):
            mine_all.extend(own or some)
            has.extend([bool(own)] * len(some))
    return there, nodes
