"""Who is simulated for which ranks, at what pace: ranks that behave alike, and the slowest of many."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ddpsim.schedules.named import scheme_named
from ddpsim.simulation.jobs.plans import PolicyView
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.jobs.straggling import StragglerDistribution
from ddpsim.workload import Workload
from ddpsim.workload.iteration_profile import IterationProfile, merge_latest
from ddpsim.workload.replayed import quantiles
from ddpsim.workload.times import Seconds

Draws = NDArray[np.int64]

DRAWS_PER_RECORD = 16
"""Of ranks beyond this multiple of the recorded iterations, the maximum is already the maximum of the record; as many
more where local steps add up."""


@dataclass(frozen=True, slots=True)
class RankKind:
    """Ranks that have the same workload and straggler factor, and use the same parameters.

    Attributes:
        ranks: which, ascending; the first is simulated as itself, the others as one, the latest of them at every point.
        workload: of each.
        paces: one a recorded iteration, scaled for this kind.
        spread, node_spread: standard deviation, from device to device of one model, and from node to node, of the
            logarithm of computing time; both act on the workload's `arithmetic_share`.
        nodes: how many the ranks are on.
        jitter: standard deviation of the logarithm of what the recorded iterations are quantiles of; 0 of real records.
        beside_others: whether ranks of its machine compute beside it, as none did where the workload was recorded.
        place: the number of the part of the model that each has.
    """

    ranks: Sequence[int]
    workload: Workload
    paces: tuple[IterationProfile, ...]
    spread: float = 0.0
    jitter: float = 0.0
    beside_others: bool = False
    node_spread: float = 0.0
    nodes: int = 1
    place: int = 0

    @property
    def first(self) -> int:
        """The lowest rank."""
        return self.ranks[0]

    def slowest(self) -> float:
        """Return the factor by which the slowest of the kind's devices is expected to take longer than the median.

        That of the slowest node, of which the slowest device counts: exact where nodes are alike, where the devices of
        one are, and where each has one.
        """
        if len(self.ranks) == 1:
            return 1.0
        latest = self.spread * (among := expected_largest(len(self.ranks)))
        if self.nodes > 1 and self.node_spread > 0:
            inside = expected_largest(len(self.ranks) / self.nodes)
            of_nodes = self.node_spread * expected_largest(self.nodes)
            latest = self.spread * inside + math.hypot(self.spread * (among - inside), of_nodes)
        return 1 + self.workload.arithmetic_share * math.expm1(latest)

    @property
    def differs(self) -> bool:
        """Whether its devices take other times for the same."""
        return self.spread > 0 or (self.node_spread > 0 and self.nodes > 1)

    def beyond_record(self) -> float:
        """Return the factor from the latest of the other ranks' draws to what the latest of them is expected to take.

        N draws among n quantiles q[k] have an expected maximum of sum q[k] ((k + 1)^N - k^N) / n^N, at most the last
        quantile; what is behind them has none.
        """
        others = len(self.ranks) - 1
        if self.jitter == 0 or others < 1:
            return 1.0
        known = quantiles(len(self.paces))
        reached = (np.arange(len(known) + 1) / len(known)) ** others
        return math.exp(self.jitter * (expected_largest(others) - float(np.diff(reached) @ known)))


def draw_own(kind: RankKind, seed: int, iterations: int) -> Callable[[int], IterationProfile]:
    """Return the pace of rank `kind.first` by iteration: recorded iterations, drawn with replacement."""
    if len(kind.paces) == 1:
        return lambda iteration: kind.paces[0]
    drawn = _draw(kind, seed, kind.first, iterations)
    return lambda iteration: kind.paces[drawn[iteration]]


def draw_latest(
    kind: RankKind, seed: int, iterations: int, cycle: int = 1, accumulate: int = 1
) -> Callable[[int], IterationProfile] | None:
    """Return the pace of the latest of the kind's other ranks by iteration; None where they cannot differ.

    Args:
        cycle: of how many iterations the last one synchronises gradients.
        accumulate: of how many the last one runs the optimizer.
    """
    if len(kind.ranks) == 1 or (len(kind.paces) == 1 and not kind.differs):
        return None
    if len(kind.paces) == 1:
        slower = kind.slowest()
        alike = kind.paces[0].scale(slower, slower if kind.workload.one_clock else 1.0)
        return lambda iteration: alike
    # Local steps add up draws, whose sums leave no tail out.
    slower = kind.slowest() * (kind.beyond_record() if cycle == 1 else 1.0)
    others = kind.ranks[1 : 1 + DRAWS_PER_RECORD * len(kind.paces) * cycle]
    drawn = np.stack([_draw(kind, seed, rank, iterations) for rank in others])
    since = _time_since_sync(kind, drawn, cycle, accumulate)
    cache: dict[int, IterationProfile] = {}

    def pace(iteration: int) -> IterationProfile:
        if iteration not in cache:
            pairs = sorted(set(zip(drawn[:, iteration].tolist(), since[:, iteration].tolist(), strict=True)))
            local = (iteration + 1) % cycle != 0
            last = merge_latest([kind.paces[record] for record, _ in pairs], [begun for _, begun in pairs], local=local)
            cache[iteration] = last.scale(slower, slower if kind.workload.one_clock else 1.0)
        return cache[iteration]

    return pace


def _time_since_sync(kind: RankKind, drawn: Draws, cycle: int, accumulate: int) -> Seconds:
    """Return by rank and iteration the rank's time, on its longer clock, since the last synchronised iteration."""
    optimizer = np.array([max(pace.optimizer_host, pace.optimizer_work) for pace in kind.paces])
    step = np.array([max(pace.host_s, pace.work_s) for pace in kind.paces])
    since = np.empty(drawn.shape)
    for iteration in range(drawn.shape[1]):
        before = max(iteration - 1, 0)
        local, updated = iteration % cycle != 0, iteration % accumulate == 0
        together = optimizer[drawn[:, before]] if updated else np.zeros(len(drawn))
        since[:, iteration] = since[:, before] + step[drawn[:, before]] if local else together
    return since


def expected_largest(count: float) -> float:
    """Return the expected maximum of `count` standard normal variables, as approximated by Blom (1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _draw(kind: RankKind, seed: int, rank: int, iterations: int) -> Draws:
    return np.random.default_rng([seed, rank]).integers(len(kind.paces), size=iterations)


Factors = NDArray[np.float64]


def factors_of(options: Options, ranks: Sequence[int], world_size: int, iterations: int) -> tuple[Factors, Factors]:
    """Return the factors on the device's and on the host's time by rank of `ranks` and iteration.

    The draw of a rank depends on its number and the seed alone, not on who is simulated as whom. A straggler is a slow
    device; jitter is of whichever of the two binds.
    """
    factors, jitter = np.ones((len(ranks), iterations)), np.ones((len(ranks), iterations))
    if options.straggling is not None:
        everybody = StragglerDistribution.of(options.straggling).factors(
            np.random.default_rng([options.seed, 2]), world_size
        )
        factors *= everybody[list(ranks), None]
    if options.jitter > 0:
        drawn = [np.random.default_rng([options.seed, 3, rank]).standard_normal(iterations) for rank in ranks]
        jitter = np.exp(options.jitter * np.stack(drawn))
    return factors * jitter, jitter


def vary(
    pace: Callable[[int], IterationProfile], factors: Sequence[Factors], *, one_thread: bool
) -> Callable[[int], IterationProfile]:
    """Return `pace` times the largest of the ranks' factors in each iteration.

    What a collective waits for is the last rank. The largest factor on the largest time at each gradient is that rank's
    where recorded iterations are alike, and no less where they differ.

    Args:
        factors: on the device's and on the host's time, by rank and iteration.
        one_thread: whether the host's time is the computation.
    """
    device, host = (each.max(axis=0) for each in (factors[0], factors[0 if one_thread else 1]))

    def scaled(iteration: int) -> IterationProfile:
        return pace(iteration).scale(float(device[iteration]), float(host[iteration]))

    return scaled


LATEST = -1
"""Number of the rank that stands for the last of several at every point."""


@dataclass(frozen=True, slots=True)
class SimulatedRank:
    """A simulated rank: itself, or the latest of several.

    Attributes:
        rank: its number, or `LATEST`.
        stands_for: the ranks that it stands for, ascending.
        kind: of those ranks, of whose recorded iterations `pace` is made.
        pace: by iteration.
        seen: what the order policies of the ranks it stands for see.
    """

    rank: int
    stands_for: Sequence[int]
    kind: RankKind
    pace: Callable[[int], IterationProfile]
    seen: Sequence[PolicyView]


def representatives_of(kind: RankKind, options: Options, total: int, world_size: int = 0) -> Iterator[SimulatedRank]:
    """Yield who stands for the ranks of a kind: the first, and where they can differ the latest of the others.

    One process without DDP, a world of 0, has no stragglers.
    """
    varies = world_size and (options.straggling is not None or options.jitter > 0)
    factors = factors_of(options, kind.ranks, world_size, total) if varies else None
    one_thread = kind.workload.one_clock
    alone = draw_own(kind, options.seed, total)
    scheme = scheme_named(options.scheme)
    together = options.sync_every * (scheme.steps if scheme.apart else 1)
    latest = draw_latest(kind, options.seed, total, together, options.accumulate)
    if latest is None and factors is not None and len(kind.ranks) > 1:
        latest = alone
    alike, first = kind.ranks if latest is None else kind.ranks[:1], alone
    if factors is not None:
        first = vary(alone, [each[:1] for each in factors], one_thread=one_thread)
        others = [each[1:] for each in factors]
        latest = None if latest is None else vary(latest, others, one_thread=one_thread)
    yield SimulatedRank(kind.first, alike, kind, first, (PolicyView(first),))
    if latest is not None:
        yield SimulatedRank(LATEST, kind.ranks[1:], kind, latest, (PolicyView(latest),))
