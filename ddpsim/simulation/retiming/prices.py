"""What each node of a graph takes under several assumptions at once: a column an assumption.

A node's seconds are a sum of DDP's costs, each so many times (`StepGraph.terms`), and of the model's own time, which
goes with the pace of the rank's device or host. So a column is a product of matrices, and nothing is built anew. What
would make another graph is marked (`Prices.another`). Read `Prices.__init__`; `CollectivePrices` has the messages'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

import numpy as np
import simpy
from numpy.typing import NDArray

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.transport import AlgorithmChoice
from ddpsim.common.operation import Operation
from ddpsim.simulation.communication import Assumptions, Communication
from ddpsim.simulation.ddp_costs import CODEC_KERNEL_S, CODEC_RATE, ENTER_S, TIMES, Costs
from ddpsim.simulation.graph import BUFFERS, BUFFERS_PART, Cause, Collective, NodeKind, RankGraph, StepGraph
from ddpsim.simulation.job_run import JobRun
from ddpsim.simulation.jobs.representatives import LATEST, SimulatedRank
from ddpsim.simulation.linear import PER, Terms
from ddpsim.simulation.rank_config import RankConfiguration
from ddpsim.simulation.retiming.dependencies import is_in_line, numbers_of
from ddpsim.simulation.retiming.intervals import Columns
from ddpsim.simulation.scheduling import schedule_of
from ddpsim.workload.gpus import AchievedGpu

_COMPUTED = (Cause.FORWARD, Cause.BACKWARD, Cause.OPTIMIZER)
_KEPT, _HOST, _DEVICE, _INPUT = range(4)
_times_of = attrgetter(*TIMES)
_ROUNDING_S = 1e-15
"""What is less is left over of sums."""


@dataclass(frozen=True, slots=True)
class RankPrices:
    """Prices of one rank, each by assumption.

    Attributes:
        costs: of DDP on the rank's device.
        compute, host: factors on its device's and its host's time, over those of the run.
        late_s: how long a collective waits for multiprocessors.
        constants: by the names that terms have.
    """

    costs: Sequence[Costs]
    compute: Columns
    host: Columns
    late_s: Columns
    constants: Mapping[str, Columns]


def has_prices(run: JobRun) -> bool:
    """Whether other constants price each node of a run: ranks that were given have paces of no kind.

    Of ranks of several devices, whose order on each is not known beforehand, none are.
    """
    known = set(map(id, run.kinds))
    return run.job.placement.devices == 1 and all(id(each.kind) in known for each in run.simulated_ranks)


class Prices:
    """The prices of a run under several assumptions.

    Args:
        run: whose calibration and factors are taken as given.
        graph: the part of its graph that is priced.
        assumed: other assumptions.

    Attributes:
        assumed: the columns: the run's own assumptions, then the others.
        ranks: in the order of the graph's.
        costs: of the job, as its first rank's workload has them, by assumption.
        another: whether a column needs another graph than the run had.
        jobs: what its ranks compute and communicate on.
        seconds: what nodes take with nothing beside them: (nodes, assumptions).
    """

    def __init__(self, run: JobRun, graph: StepGraph, assumed: Sequence[Assumptions]) -> None:
        assumed = [Assumptions(run.job.calibration, run.job.wire_factor, latency=run.job.latency), *assumed]
        self._run, self.assumed = run, assumed
        self._costs_of: dict[tuple[int, int], Costs] = {}
        self._keeps: dict[tuple[object, ...], bool] = {}
        job = run.job
        self.costs = [self._costs(each.calibration, job.gpu) for each in assumed]
        self.ranks = [self._price_rank(*pair) for pair in zip(run.simulated_ranks, run.rank_configs, strict=True)]
        self.jobs = [job, *map(job.with_assumptions, assumed[1:], self.costs[1:])]
        self.another = np.zeros(len(assumed), dtype=bool)
        for simulated in run.simulated_ranks:
            kind = simulated.kind
            others = [replace(kind, spread=c.pace_spread, node_spread=c.node_spread) for c in self.costs]
            # A rank that stands for the slowest is in the graph only where devices differ; of several recorded
            # iterations there is one in any case, the latest of their draws.
            self.another |= [len(kind.paces) == 1 and other.differs != kind.differs for other in others]
        self.another |= list(map(self._moves_part_of_host, assumed, self.costs))
        if job.options.straggling is not None:
            self.another |= [each.excess != 1 for each in assumed]
        # The reducer's buckets hang on sizes and order alone, not on how long anything takes.
        if job.options.scheduled:
            self.another |= [not self._keeps_schedule(each) for each in assumed]
        names = list(self.ranks[0].constants)
        nodes, sums, times = _terms(graph, names)
        constants = [np.stack(list(rank.constants.values())) for rank in self.ranks]
        # Work of no time has no node. Where a constant was 0 in the run and is more in a column, nodes are missing.
        used = np.flatnonzero(times.any(axis=0) | (np.array(names) == ENTER_S))
        for values, each in zip(constants, graph.ranks, strict=True):
            if not each.one_thread:
                now = values[used]
                self.another |= ((now[:, :1] == 0) & (now > 0)).any(axis=0)
        self.seconds = np.zeros((len(graph.seconds), len(assumed)))
        for rank, values, each in zip(self.ranks, constants, graph.ranks, strict=True):
            own = (nodes >= each.nodes.start) & (nodes < each.nodes.stop)
            self._price(graph, each, rank, nodes[own], (times @ values)[sums[own]])

    def _keeps_schedule(self, assumed: Assumptions) -> bool:
        """Whether the schedule is made as in the run.

        Some schemes order or delay their messages by when gradients are ready and by what messages take.
        """
        run, job = self._run, self._run.job
        if assumed.compute == 1 and job.keeps_transports(assumed):
            return True
        key = assumed.compute, id(assumed.calibration), assumed.latency, assumed.links, assumed.link_rate
        if key not in self._keeps:
            options = replace(job.options, scale_compute=job.options.scale_compute * assumed.compute)
            first, plan = run.kinds[0].workload, run.rank_configs[0].plans.plan(0)
            self._keeps[key] = run.schedule == schedule_of(
                options, first, plan, assumed.on(job.placement), job.backend, assumed.calibration
            )
        return self._keeps[key]

    def _moves_part_of_host(self, assumed: Assumptions, costs: Costs) -> bool:
        """Whether a host's time moves of which a part keeps its own.

        Threads of one process copy the module too, and each further graph of a compiled step takes `graph_s`
        and `graph_passes`.
        """
        run = self._run
        compiled, one_process = run.job.options.compiled, run.schedule.one_process
        now = self.costs[0]
        graphs = compiled and (costs.graph_s, costs.graph_passes) != (now.graph_s, now.graph_passes)
        return graphs or (assumed.host != 1 and (compiled or one_process))

    def _price(
        self, graph: StepGraph, rank: RankGraph, prices: RankPrices, nodes: NDArray[np.intp], constants_s: Columns
    ) -> None:
        """Price one rank's nodes, of which some are, in part, sums of constants."""
        of = slice(rank.nodes.start, rank.nodes.stop)
        # What is left without DDP's costs is the model's; of a node of costs alone rounding leaves a trace.
        plain = np.array(graph.seconds[of])
        plain[nodes - of.start] -= constants_s[:, 0]
        plain[np.abs(plain) < _ROUNDING_S] = 0.0
        loads = np.array([each.input for each in self.assumed])
        factors = np.stack([np.ones_like(prices.host), prices.host, prices.compute, loads])
        self.seconds[of] = plain[:, None] * factors[_paces(graph, rank)]
        self.seconds[nodes] += constants_s

    def wire(self, size_bytes: int) -> Columns:
        """Return the factor on the time of a collective of so many bytes, by assumption."""
        return np.array([1.0 if each.wire_factor is None else each.wire_factor(size_bytes) for each in self.assumed])

    @cached_property
    def shared(self) -> list[Communication]:
        """What the ranks communicate on, by assumption; factors on the time of collectives apart."""
        run = self._run
        scheduled = run.rank_configs[0].scheduled(0)
        of_transports = {(id(run.job.transports), run.job.latency): run.shared}
        for job in self.jobs:
            key = (id(job.transports), job.latency)
            if key not in of_transports:
                plain = replace(job, wire_factor=run.job.wire_factor)
                of_transports[key] = plain.communication(simpy.Environment(), scheduled)
        return [of_transports[id(job.transports), job.latency] for job in self.jobs]

    def _price_rank(self, simulated: SimulatedRank, rank_config: RankConfiguration) -> RankPrices:
        options = self._run.job.options
        costs = [self._costs(each.calibration, rank_config.gpu) for each in self.assumed]
        device, host = (np.array([getattr(each, name) for each in self.assumed]) for name in ("compute", "host"))
        kernels_s = rank_config.kernel_s * device
        compute = device * self._devices(simulated, sleeps=rank_config.execution.sleeps)
        if (factor := options.stragglers.get(simulated.kind.first, 1.0)) != 1:
            compute = compute * [each.straggler(factor) / factor for each in self.assumed]
        constants = dict(zip(TIMES, np.array([_times_of(each) for each in costs]).T, strict=True))
        constants[PER + "copy_Bps"] = np.array([1 / each.copy_Bps for each in costs])
        codecs = [each.codec(options.codec.name, one_thread=rank_config.execution.one_thread) for each in costs]
        constants[CODEC_KERNEL_S] = np.array([each.launch_s for each in codecs])
        constants[PER + CODEC_RATE] = np.array([1 / each.memory_bandwidth for each in codecs])
        meets = np.array([not each.silent for each in self.assumed], dtype=float)
        constants |= {BUFFERS_PART + name: values * meets for name, values in constants.items()}
        if not rank_config.collectives_take:
            meets = np.zeros_like(meets)
        entered = [each.entering_s(s) for each, s in zip(costs, kernels_s.tolist(), strict=True)]
        constants[ENTER_S] = np.array(entered) * meets
        late_s = np.array([each.late_kernels for each in costs]) * kernels_s * meets
        return RankPrices(costs, compute, host, late_s, constants)

    def _devices(self, simulated: SimulatedRank, *, sleeps: bool) -> Columns:
        """Return the factors by which devices beside each other, and the slowest of them, take longer than they did."""
        kind = simulated.kind
        factors = np.array([each.shared_compute_slowdown if kind.beside_others else 1.0 for each in self.costs])
        if simulated.rank == LATEST and not sleeps:
            others = [replace(kind, spread=each.pace_spread, node_spread=each.node_spread) for each in self.costs]
            factors = factors * [other.slowest() for other in others]
        relative: Columns = factors / factors[0]
        return relative

    def _costs(self, calibration: Calibration | None, gpu: AchievedGpu | None) -> Costs:
        key = (id(calibration), id(gpu))
        if key not in self._costs_of:
            self._costs_of[key] = Costs.of(
                self._run.job.backend, calibration, gpu, scale_host=self._run.job.options.scale_host
            )
        return self._costs_of[key]


def _terms(graph: StepGraph, names: Sequence[str]) -> tuple[NDArray[np.intp], NDArray[np.intp], Columns]:
    """Return the nodes that are sums of constants, which sum each is, and of each how many times it has each name."""
    numbers: dict[Terms, int] = {}
    by_id = {id(terms): terms for terms in graph.terms.values()}
    known = {key: numbers.setdefault(terms, len(numbers)) for key, terms in by_id.items()}
    times = np.zeros((len(numbers), len(names)))
    for terms, number in numbers.items():
        for name, count in terms:
            times[number, names.index(name)] += count
    sums = [known[id(terms)] for terms in graph.terms.values()]
    return np.array(list(graph.terms), dtype=np.intp), np.array(sums, dtype=np.intp), times


def _paces(graph: StepGraph, rank: RankGraph) -> NDArray[np.intp]:
    """Return by whose pace each node's seconds go that are none of DDP's costs; only a device's host has its own."""
    of = slice(rank.nodes.start, rank.nodes.stop)
    kind, cause = numbers_of(graph.kind[of]), numbers_of(graph.cause[of])
    delays, host = kind == NodeKind.DELAY, _KEPT if rank.one_thread else _HOST
    works = (kind == NodeKind.COMPUTE) | (kind == NodeKind.PACED)
    computed = works & np.isin(cause, _COMPUTED)
    pace = np.where(computed | (delays & (cause == Cause.OPTIMIZER)), _DEVICE, _KEPT)
    pace = np.where(works & (cause == Cause.INPUT), _INPUT, pace)
    return np.where(delays & (cause == Cause.HOST), host, pace)


@dataclass(frozen=True, slots=True)
class SentCollective:
    """A collective, and the place in the graph of the rank that sends it without the others; None where they meet."""

    collective: Collective
    sender: int | None

    @property
    def key(self) -> tuple[object, ...]:
        """Collectives of one key take the same time."""
        return self.sender, *self.collective.key


class CollectivePrices:
    """Times of the distinct collectives of a run under several assumptions.

    Args:
        run: whose transports they go by.
        prices: of DDP's costs, and the transports.
        sent: one of each kind; rows are in their order.
    """

    def __init__(self, run: JobRun, prices: Prices, sent: Sequence[SentCollective]) -> None:
        self._run, self._prices = run, prices
        self.rows = {each.key: row for row, each in enumerate(sent)}
        collectives, apart = [each.collective for each in sent], any(each.sender is not None for each in sent)
        costs, shared = prices.costs, prices.shared
        carried = [run.shared.lanes[each.lane] for each in collectives]
        hops = [() if apart else tuple(each.collectives.transport.hops.items()) for each in carried]
        known = {each: [cost.slowdown_of(dict(each)) for cost in costs] for each in dict.fromkeys(hops)}
        slowed = np.array([known[each] for each in hops])
        steps = np.maximum(np.array([each.step_slowdown for each in costs]) / slowed, 1.0)
        # Most assumptions leave a transport as it is: a demand is made once a transport, and spread over the columns.
        distinct = list({id(each): each for each in shared}.values())
        columns = [distinct.index(each) for each in shared]
        firsts = [columns.index(number) for number in range(len(distinct))]
        demands = np.array([[self._demand(each, by) for by in firsts] for each in sent])[:, columns]
        latency, stall, links, threads, slow = np.moveaxis(demands, -1, 0)
        self.another_choice = np.zeros(len(columns), dtype=bool)
        if len(distinct) > 1 and not apart:
            chosen = [[self._choice(each, by) for by in distinct] for each in collectives]
            self.another_choice[:] = [any(row[each] != row[columns[0]] for row in chosen) for each in columns]
        wire = [prices.wire(group.sized(each)) for group, each in zip(carried, collectives, strict=True)]
        self._wire = np.array(wire)
        self.latency_s: Columns = latency * self._wire
        self._idle_s: Columns = (stall + np.maximum(links, threads)) * self._wire
        # Bytes go at the pace of the slower of links and threads. While ranks compute, threads are woken later and all
        # of it takes longer; latencies and stalls keep their time, as in `Network`.
        busy = stall + np.where(slow > 0, np.maximum(links, threads * steps) * slowed, np.maximum(links, threads))
        self._busy_s: Columns = busy * self._wire
        self.alone_s: Columns = self.latency_s + self._idle_s
        floors = [each.broadcast_s for each in costs]
        self.floor_s: Columns = np.array(
            [floors if collective.operation == BUFFERS else [0.0] * len(costs) for collective in collectives]
        )
        self.busy_matters = bool((self._busy_s != self._idle_s).any())

    def leave_out_but(self, columns: NDArray[np.intp]) -> None:
        """Go on with some columns only; what is carried out otherwise is known of all."""
        self.latency_s, self._idle_s, self._busy_s = (
            each[:, columns] for each in (self.latency_s, self._idle_s, self._busy_s)
        )

    def bytes_s(self, rows: Columns, busy: Columns) -> Columns:
        """Return how long bytes are on their way, of which computing goes on beside them for the share `busy`."""
        idle_s, busy_s = self._idle_s[rows], self._busy_s[rows]
        with np.errstate(divide="ignore", invalid="ignore"):
            slower = 1 / ((1 - busy) / idle_s + busy / busy_s)
        return np.where(idle_s > 0, slower, 0.0)

    def _choice(self, collective: Collective, shared: Communication) -> AlgorithmChoice:
        group = shared.lanes[collective.lane]
        return group.collectives.choice(group.sized(collective), collective.carried_as)

    def _demand(self, sent: SentCollective, column: int) -> tuple[float, float, float, float, float]:
        """Return latency, stall, the bytes' time on links and by threads, and 1 where computation slows it."""
        collective, shared = sent.collective, self._prices.shared[column]
        apart = None if sent.sender is None else shared.apart
        if apart is None or sent.sender is None:
            group = shared.lanes[collective.lane]
            demand, capacities = group.demand(collective), group.collectives.transport.capacities
        else:
            demand = apart.demand(self._run.simulated_ranks[sent.sender].rank, collective)
            capacities = apart.network.capacities
        size_bytes, latency_s = demand.size_bytes, demand.latency_s
        links_s = size_bytes / min(demand.alone_rate(capacities), demand.rate_limit)
        threads_s = size_bytes / demand.host_limit
        shares_links = apart is not None or self._run.job.options.fidelity != "closed"
        slowed = shares_links and bool(demand.loads) and size_bytes > 0
        if collective.operation != BUFFERS and is_in_line(self._run, collective.lane):
            latency_s = 0.0
        return latency_s, demand.stall_s, links_s, threads_s, float(slowed and math.isfinite(links_s))

    def beside_others_s(self, collectives: Sequence[Collective], wire: Columns, end: Columns) -> Columns:
        """Return the least time of each beside those that were in flight when it began, as `ConcurrentCollectives`.

        Args:
            wire, end: when the last rank had come, and when each ended.
        """
        costs, ranks = self._prices.costs, self._run.job.placement.world_size
        pair, behind = (np.array([getattr(each, name) for each in costs]) for name in ("pair_s", "behind_s"))
        least = np.zeros((len(wire), len(costs)))
        if ranks == 1 or not (pair.any() or behind.any()):
            return least
        order = sorted(range(len(wire)), key=lambda place: wire[place])
        for at, place in enumerate(order):
            others = [other for other in order[:at] if end[other] > wire[place]]
            if not others:
                continue
            longest = np.max([self._time_alone(collectives[other]) for other in others], axis=0)
            steps = self._run.shared.steps(collectives[place]) / Operation.ALLREDUCE.steps(ranks)
            least[place] = np.maximum(pair, np.minimum(behind, longest)) * min(1.0, steps)
        return least

    def _time_alone(self, collective: Collective) -> Columns:
        alone_s = np.array([each.alone_s(collective) for each in self._prices.shared])
        wire_s: Columns = alone_s * self._prices.wire(collective.size_bytes)
        return wire_s
