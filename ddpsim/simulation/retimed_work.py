"""What one rank computes beside its collectives, in columns: its nodes' seconds, and by what they are slowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ddpsim.collectives.transport import alone_s
from ddpsim.dataclass import dataclass
from ddpsim.simulation.communication import Communication, copies_of
from ddpsim.simulation.contention import MOST, ComputeSlowdown, slower
from ddpsim.simulation.dependencies import Moments, Rows
from ddpsim.simulation.graph import NodeKind
from ddpsim.simulation.job_run import Columns, JobRun
from ddpsim.simulation.prices import Prices
from ddpsim.simulation.setting import RankConfiguration

_SHORT_S = 1e-12
"""What takes no longer has no share of anything."""


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
        return np.interp(moments + self._shift, self._at, self._grown)


def sorted_changes(begin: Columns, end: Columns, *taken: Columns) -> tuple[Columns, ...]:
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


def in_flight_at(moments: Columns, begin: Columns, end: Columns) -> Columns:
    """Return whether something is in flight at `moments`: it has begun before and ends after."""
    found = np.empty(moments.shape, dtype=bool)
    for column in range(moments.shape[1]):
        at, begun, over = moments[:, column], np.sort(begin[:, column]), np.sort(end[:, column])
        found[:, column] = np.searchsorted(begun, at, "left") > np.searchsorted(over, at, "right")
    return found


def going_on(moments: Columns, begin: Columns, end: Columns) -> Columns:
    """Return whether one of some intervals, one after the other, has begun by `moments` and ends after."""
    found = np.empty(moments.shape, dtype=bool)
    for column in range(moments.shape[1]):
        at = moments[:, column]
        begun, over = np.searchsorted(begin[:, column], at, "right"), np.searchsorted(end[:, column], at, "right")
        found[:, column] = begun > over
    return found


def busy_until(begin: Columns, end: Columns, horizon_s: float) -> Callable[[Columns], Columns]:
    """Return what tells until a moment how long one after another of some intervals has lasted."""
    moments = np.empty((2 * len(begin), begin.shape[1]))
    moments[0::2], moments[1::2] = begin, end
    rates = np.zeros_like(moments)
    rates[0::2] = 1.0
    return Integral(moments, rates, horizon_s).until


def fair_rates(begin: Columns, end: Columns, horizon_s: float) -> Columns:
    """Return at what rate, in the mean, each of some intervals goes on where all that go on have equal parts of it."""
    moments, count = sorted_changes(begin, end)
    rates = 1 / np.maximum(count, 1.0)
    until = Integral(moments, rates, horizon_s).until
    return 1 - share((end - begin) - (until(end) - until(begin)), end - begin)


def share(part_s: Columns, whole_s: Columns) -> Columns:
    """Return which part of times something lasted, between 0 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(whole_s > _SHORT_S, part_s / whole_s, 0.0)
    clipped: Columns = np.clip(found, 0.0, 1.0)
    return clipped


_SLOWED = (NodeKind.COMPUTE, NodeKind.SERVE, NodeKind.LASTING)
_NOTHING_S = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class RetimedRun:
    """What a run has shown, and what its nodes take under several assumptions.

    Attributes:
        prices: the first column of which is the run's.
        end_s: when the node of each row ended in the run.
        lasts: what it takes now: (rows, assumptions).
        late: how long a collective waits for multiprocessors before it begins.
    """

    run: JobRun
    prices: Prices
    rows: Rows
    end_s: Columns
    lasts: Columns
    late: Columns

    @property
    def columns(self) -> int:
        """How many assumptions there are."""
        return len(self.lasts[0])


class RankWork:
    """The work of one rank.

    Args:
        seen: gets what its nodes take, slowed as much as they were in the run.
        number: place of the rank in the graph.
    """

    def __init__(self, seen: RetimedRun, number: int) -> None:
        graph, rows, prices = seen.run.graph, seen.rows, seen.prices.ranks[number]
        host, compute, copies, lanes, delays = rows.streams[number]
        self._seen, self._thread = seen, graph.ranks[number].one_thread
        nodes = [*host, *compute, *delays]
        seconds = seen.prices.seconds[nodes]
        # How far a completion lags behind its hook is no time that the device works.
        lasting = np.array([[graph.kind[node] is not NodeKind.NOT_BEFORE] for node in nodes])
        seen.lasts[[rows.of[node] for node in nodes]] = seconds * lasting
        for node in (*copies, *(node for node in compute if graph.kind[node] is NodeKind.COPY)):
            end_s = seen.run.times.end[node]
            copied_s = end_s - seen.run.times.begin[node] if np.isfinite(end_s) else 0.0
            seen.lasts[rows.of[node]] = copied_s * self._copying(number)
        stream = host if self._thread else compute
        places = [at for at, node in enumerate(stream) if graph.kind[node] in _SLOWED]
        self._work = np.array([rows.of[stream[at]] for at in places], dtype=np.intp)
        self._before = np.array([rows.of[stream[at - 1]] if at else 0 for at in places], dtype=np.intp)
        self._queued = np.array([rows.of[graph.queued[stream[at]]] for at in places], dtype=np.intp)
        own = np.array(places, dtype=np.intp) + (0 if self._thread else len(host))
        self._seconds = seconds[own]
        kinds = [graph.kind[stream[at]] for at in places]
        self._serves = np.array([kind is not NodeKind.COMPUTE for kind in kinds], dtype=bool)
        self._busy = np.array([kind is not NodeKind.SERVE for kind in kinds], dtype=bool)
        self._flights = np.array([rows.of[node] for lane in lanes for node in lane], dtype=np.intp)
        self._copy_slowdown = np.array([each.copy_slowdown for each in seen.prices.costs])
        self._slowdown(number, [node for lane in lanes for node in lane])
        self._late_s = prices.late_s
        self._as_seen([node for lane in lanes for node in lane])

    def _copying(self, number: int) -> Columns:
        """Return the factors on the time of copying a batch, where the links to the device have other rates."""
        run, jobs = self._seen.run, self._seen.prices.jobs
        setting, draw = run.settings[number], run.draws[number]
        stage = setting.input_stage
        if stage is None or stage.copy_bytes == 0 or setting.execution.one_thread:
            return np.ones(len(jobs))
        together = range(run.job.placement.world_size) if stage.in_turn else draw.stands_for
        placements = {id(job.placement): job.placement for job in jobs}
        known = {key: alone_s(*copies_of(each, together, stage)) for key, each in placements.items()}
        copied_s = np.array([known[id(job.placement)] for job in jobs])
        found: Columns = copied_s / copied_s[0]
        return found

    def _slowdown(self, number: int, collectives: Sequence[int]) -> None:
        """Find what collectives take of the rank's processor in each column, or the factor that is known."""
        run, prices = self._seen.run, self._seen.prices
        setting, costs = run.settings[number], prices.ranks[number].costs
        known = [each.compute_slowdown_known or not each.takes for each in costs]
        self._fixed = np.where(known, [each.compute_slowdown for each in costs], np.nan)
        self._share = setting.workload.arithmetic_share
        self._tail = np.array([each.tail_share for each in costs])
        nothing = np.zeros((len(collectives), len(costs)))
        self._taken = nothing, nothing
        if known[0] or not collectives:
            return
        distinct = list({id(each): each for each in prices.shared}.values())
        columns = [distinct.index(each) for each in prices.shared]
        slowdowns = [self._slowdown_by(each, setting) for each in distinct]
        found = [run.graph.collectives[node] for node in collectives]
        taken = [[each.taken(collective) for each in slowdowns] for collective in found]
        many, bandwidth = (
            np.array([[getattr(each, name) for each in row] for row in taken])[:, columns]
            for name in ("multiprocessors", "bandwidth")
        )
        wire = {each.size_bytes: prices.wire(each.size_bytes) for each in found}
        self._taken = (
            many * _over_first([each.channel_multiprocessors for each in costs]),
            bandwidth
            * _over_first([each.memory_passes for each in costs])
            / np.array([wire[each.size_bytes] for each in found]),
        )

    def _slowdown_by(self, shared: Communication, setting: RankConfiguration) -> ComputeSlowdown:
        """Return what collectives cost the rank's computation, as these transports carry them, at the run's costs."""
        lanes = () if shared.lanes is None else shared.lanes.transports()
        ranks, transport = self._seen.run.job.placement.world_size, shared.collectives.transport
        return ComputeSlowdown.of(setting.costs, self._share, setting.capacity, transport, ranks, lanes)

    def _as_seen(self, collectives: Sequence[int]) -> None:
        """Let work take as many times its own seconds as it did in the run, and collectives be late that were."""
        times, own_late_s = self._seen.run.times, self._late_s[0]
        if own_late_s > 0:
            for node, row in zip(collectives, self._flights, strict=True):
                ready_s = max(times.end[each] for each in self._seen.run.graph.after[node])
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

    def busy(self, end: Columns) -> tuple[Columns, Columns]:
        """Return when the rank's processor began and ended to be busy, one time after the other."""
        return self._begin(end)[self._busy], end[self._work[self._busy]]

    def relax(self, now: Moments, horizon_s: float) -> bool:
        """Let work take what the collectives in flight at these moments cost it; return whether they cost anything."""
        if self._late_s.any() and len(self._flights) and len(self._work):
            self._be_late(now)
        disturbed = bool((self._fixed != 1).any())
        served = bool(self._serves.any() and (self._copy_slowdown != 1).any())
        if not len(self._work) or not len(self._flights) or not (disturbed or served):
            return False
        begin, end = self._begin(now.end), now.end[self._work]
        flights, found = (now.begin[self._flights], now.end[self._flights]), self._seconds
        if disturbed:
            moments, factors = self._factors(*flights)
            found = found * mean_factors(begin, end, moments, factors, horizon_s)
        if self._serves.any():
            flying = in_flight_at(begin[self._serves], *flights)
            slowed = np.where(flying, self._copy_slowdown, 1.0)
            found = found.copy()
            found[self._serves] = self._seconds[self._serves] * slowed
        self._seen.lasts[self._work] = found
        return True

    def _be_late(self, now: Moments) -> None:
        """Let those collectives wait for multiprocessors that come upon computation."""
        begin, end = self.busy(now.end)
        ready = now.begin[self._flights] - self._seen.late[self._flights]
        self._seen.late[self._flights] = np.where(going_on(ready, begin, end), self._late_s, 0.0)

    def _factors(self, begin: Columns, end: Columns) -> tuple[Columns, Columns]:
        """Return the moments at which collectives begin and end, and the factor on computing time from each on."""
        moments, count, multiprocessors, bandwidth = sorted_changes(begin, end, *self._taken)
        tail = np.where(multiprocessors > _NOTHING_S, self._tail, 0.0)
        derived = slower(self._share, tail, np.minimum(multiprocessors, MOST), np.minimum(bandwidth, MOST))
        beside = np.where(np.isnan(self._fixed), derived, self._fixed)
        return moments, np.where(count > 0.5, beside, 1.0)


def _over_first(values: Sequence[float]) -> Columns:
    """Return values over the first of them; 0 where that is none."""
    return np.array(values) / values[0] if values[0] else np.zeros(len(values))
