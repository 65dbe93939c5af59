"""NCCL and RCCL: rings, trees and in-switch reduction over a placement's channels, with protocols as they pick them.

`NcclTransport` answers what a collective costs. NCCL picks the entry (algorithm and protocol) that its own cost model
believes fastest (`tuning`); the time is then what `costs` says of that entry, which predicts where the model only
ranks. Read `NcclTransport.demand` first. `operation_table` has the beliefs of operations other than an allreduce, in
the units of `tuning`; `NcclPaths` are the ways between any two GPUs, by which patterns, all-to-alls and sends go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache

from ddpsim.collectives.all_to_all import AllToAll
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import DEFAULT, CollectiveOptions
from ddpsim.collectives.nccl import rccl
from ddpsim.collectives.nccl import steps as nccl_steps
from ddpsim.collectives.nccl.costs import CORNER, Cost, EntryCosts, soft_max
from ddpsim.collectives.nccl.layout import Layout, join_by_nvlink
from ddpsim.collectives.nccl.loads import DIRECT, GROUPS, HOST, HOST_TO_NIC, NET, route_loads
from ddpsim.collectives.nccl.pieces import ll_pieces, window_of
from ddpsim.collectives.nccl.shape import Shape, TuningEntry
from ddpsim.collectives.nccl.tuning import bus_share, ring_bandwidth, table
from ddpsim.collectives.nccl.versions import ALL_PAIRS, LL, NVLS, NVLS_TREE, RING, SIMPLE, TREE, Release, release
from ddpsim.collectives.network.fairness import Demand, LinkId, alone_s
from ddpsim.collectives.patterns import PATTERNS
from ddpsim.collectives.routes import PlacedLink, PlacementLinks, total_by_key
from ddpsim.collectives.schedules import Connection, Steps
from ddpsim.collectives.transport import AlgorithmChoice, RankPaths, Transport
from ddpsim.common.errors import TopologyError, UnknownNameError
from ddpsim.common.operation import Operation
from ddpsim.topology.graph import Placement
from ddpsim.topology.paths import Paths, find_paths


@lru_cache(maxsize=256)
def operation_table(shape: Shape, operation: Operation) -> tuple[TuningEntry, ...]:
    """Return every protocol of a ring that NCCL may run an operation by, other than an allreduce.

    Its bandwidth is p over its steps of its bus bandwidth, where a rooted operation counts p steps. What scatters or
    gathers takes the base latency and half an allreduce's steps, what is rooted one hop's, since channels are alike
    (`sameChannels`). LL on one node has a third of the bandwidth instead of a quarter, except to reduce, up to 2.22.
    Trees run allreduces alone.
    """
    known = release(shape.version)
    if shape.nodes == 1 and operation is not Operation.REDUCE and known.ll_share == 1 / 4:
        known = replace(known, ll_share=1 / 3)
    return tuple(
        TuningEntry(
            RING,
            entry.protocol,
            _operation_latency_us(known, shape, entry, operation),
            _bus_bandwidth(known, shape, entry) / operation.sent(shape.ranks),
        )
        for entry in table(shape)
        if entry.algorithm == RING
    )


def _bus_bandwidth(known: Release, shape: Shape, entry: TuningEntry) -> float:
    believed = entry.bandwidth if shape.gcn else ring_bandwidth(known, shape, entry.protocol)
    return believed / bus_share(shape)


def _operation_latency_us(known: Release, shape: Shape, ring: TuningEntry, operation: Operation) -> float:
    base_us = rccl.BASE_US[ring.protocol] if shape.gcn else known.base[RING][ring.protocol]
    if not operation.rooted:
        return base_us + (ring.latency_us - base_us) / 2
    if shape.gcn:
        return base_us + rccl.hop_us(shape, ring.protocol)
    hop_us = known.net if shape.nodes > 1 else known.nvlink if shape.nvlink else known.pci
    return base_us + hop_us[RING][ring.protocol]


ALGORITHMS = (RING, TREE, NVLS, NVLS_TREE, ALL_PAIRS)

_SHARPNESS = 30.0
"""How firmly the cheaper of NCCL's entries is taken: near a crossover the time is between those of both.

An entry that NCCL believes to take 5 % longer weighs 1.05**-30 - 0.1 = 0.13, the cheapest 1 - 0.1. Chosen by hand:
`python -m studies.accuracy.by_hand` prints the error at half and at double of it. On the tables kept here that is 21.5
and 21.3 %, beside 21.1 %: any other value would do nearly as well, and a step at each crossover is what it avoids.
"""

_LEAST_WEIGHT = 0.1
"""Weight, of one the cheapest has, below which an entry is out: it takes 8 % longer than the cheapest, or more.

Chosen by hand, to try few entries: half and double of it move the error by 0.1 % of the times at most
(`python -m studies.accuracy.by_hand`).
"""

_P2P_LL_BYTES = 16384
"""Of a channel's part of a message to another GPU, up to which it is sent by LL: NCCL_P2P_LL_THRESHOLD."""


class NcclTransport(Transport):
    """Predicts NCCL's collectives on a placement, on AMD's GPUs RCCL's.

    Args:
        layout: the placement's channels.
        calibration: constants; the priors where None.
        options: whose algorithm may be one of `ALGORITHMS`; links are expanded where `layout` is.

    Raises:
        UnknownNameError: an algorithm that is not modelled.
        TopologyError: an algorithm that the machine cannot run.
    """

    streams_per_group = 1

    def __init__(
        self,
        layout: Layout,
        calibration: Calibration | None = None,
        options: CollectiveOptions = DEFAULT,
    ) -> None:
        algorithm = options.algorithm
        if algorithm not in ("auto", *ALGORITHMS):
            known = ("auto", *ALGORITHMS, *PATTERNS)
            raise UnknownNameError.among("algorithm", algorithm, known, place="algorithm")
        self.backend = "rccl" if layout.shape.gcn else "nccl"
        self.calibration = calibration or Calibration.priors(self.backend)
        self.layout = layout
        self._options = options
        self._get = {name.removeprefix(f"{self.backend}."): c.value for name, c in self.calibration.constants.items()}
        self._cost = EntryCosts(layout, self._get)
        self._entries = layout.entries
        self._allowed = [i for i, e in enumerate(layout.entries) if algorithm in ("auto", e.algorithm)]
        if not self._allowed:
            raise TopologyError(
                f"{algorithm} cannot run on {layout.placement.topology.name}", place="algorithm", remedy="use auto"
            )
        self.capacities: Mapping[LinkId, float] = layout.capacities
        self._demands: dict[tuple[Operation, int], Demand] = {}
        self._costs_of: dict[tuple[Operation, int], list[tuple[Cost, float]]] = {}

    @property
    def hops(self) -> Mapping[str, float]:  # type: ignore[override]  # nobody sets it
        """Kinds of hops of the ring, and what each takes for a byte, over what the slowest takes.

        Host memory on the way to a NIC alone is a kind of its own.
        """
        rates = self.layout.ring.rates
        least, own = min(rates.values(), default=0.0), self.layout.hop
        return {HOST_TO_NIC if each == HOST != own else each: least / rate for each, rate in rates.items()}

    def choice(self, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> AlgorithmChoice:
        """Return the entry of NCCL's table that it believes is fastest, with the channels it uses.

        One rank, or no bytes, is one launch, which has the name of a ring.
        """
        if self.layout.ranks == 1 or size_bytes == 0:
            return AlgorithmChoice(RING, SIMPLE)
        if operation is Operation.ALL_TO_ALL:
            return AlgorithmChoice("pairs", SIMPLE)
        cost = self._costs(operation, size_bytes)[0][0]
        return AlgorithmChoice(cost.entry.algorithm, cost.entry.protocol, cost.channels)

    def entries(self, size_bytes: int) -> tuple[TuningEntry, ...]:
        """Return the entries of NCCL's table that the time of `size_bytes` is of, the fastest by its belief first."""
        return tuple(cost.entry for cost, _ in self._costs(Operation.ALLREDUCE, size_bytes))

    def demand(self, operation: Operation, size_bytes: int) -> Demand:
        """Return the chosen pattern's latency, loads and rate; near a crossover scaled to lie between both sides.

        Each size's is found once: every iteration asks for the same.
        """
        key = (operation, size_bytes)
        if key not in self._demands:
            self._demands[key] = self._demand(operation, size_bytes)
        return self._demands[key]

    def _demand(self, operation: Operation, size_bytes: int) -> Demand:
        if self.layout.ranks == 1 or size_bytes == 0:
            return Demand(self._cost.start_s(SIMPLE), 0, {})
        if operation is Operation.ALL_TO_ALL:
            demand = self._all_to_all.demand(size_bytes)
            return replace(demand, latency_s=demand.latency_s + self._isolated_s)
        costs = self._costs(operation, size_bytes)
        cost, time_s = costs[0][0], self._average_s(costs, size_bytes)
        factor = time_s / cost.time_s(size_bytes)
        pattern, share = self._cost.pattern(cost.entry), self._cost.share(operation)
        reached = self._cost.reached(cost)
        put = ((load.link.name, load.bytes * share * factor / reached[load.group]) for load in pattern.loads)
        # A ring's latencies lie between its steps. Trees and chains are one message, their latency before it.
        stepwise = cost.entry.algorithm == RING and operation.steps(self.layout.ranks) > 1 and not operation.rooted
        ahead_s = self._cost.start_s(cost.entry.protocol) + cost.before_s
        stall_s = (cost.latency_s - ahead_s) * factor if stepwise else 0.0
        return Demand(
            cost.latency_s * factor - stall_s,
            size_bytes,
            total_by_key(put),
            cost.rate / factor,
            stall_s=stall_s,
            hops=self._hops(cost.entry.protocol),
        )

    def threads_share(self, demand: Demand) -> float:
        """Return the share of the channels' threads, by how much the rate follows theirs, or of sockets' threads.

        Those of a port that move less than it carries are in the loads of its links.
        """
        if not demand.loads:
            return 0.0
        links = {link: load / self.capacities[link] for link, load in demand.loads.items()}
        if max(links, key=lambda link: links[link]) in self._socket_links:
            return 1.0
        return 1 - float(min(demand.limit / demand.alone_rate(self.capacities), 1.0) ** CORNER)

    @cached_property
    def _socket_links(self) -> frozenset[LinkId]:
        """The links to and from ports whose sockets' threads move less than the ports carry."""
        patterns = [each for each in (self.layout.ring, self.layout.tree) if self._cost.socket_share(each) < 1]
        return frozenset(load.link.name for each in patterns for load in each.loads if load.group == NET)

    def _hops(self, protocol: str) -> tuple[tuple[float, float], ...]:
        """Return the parts of a ring's hops between nodes and inside, with their links' room over the tightest."""
        ring = self.layout.ring
        rates = {group: rate * self._cost.efficiency(group, protocol, ring) for group, rate in ring.rates.items()}
        tightest = min(rates.values())
        if NET not in rates:
            return ((1.0, 1.0),)
        across, inside = rates.pop(NET), min(rates.values(), default=tightest)
        part = 1 / self.layout.per_node
        return ((part, across / tightest), (1 - part, inside / tightest))

    def time_s(self, operation: Operation, size_bytes: int) -> float:
        """Return the time of an operation with nothing else in flight."""
        if self.layout.ranks == 1 or size_bytes == 0:
            return self._cost.start_s(SIMPLE)
        if operation is Operation.ALL_TO_ALL:
            return alone_s(self.demand(operation, size_bytes), self.capacities)
        return self._average_s(self._costs(operation, size_bytes), size_bytes)

    def steps(self, operation: Operation, size_bytes: int) -> Steps:
        """Return the chosen pattern transfer by transfer, scaled as `demand` is."""
        if self.layout.ranks == 1 or size_bytes == 0:
            return Steps(self._cost.start_s(SIMPLE), ())
        if operation is Operation.ALL_TO_ALL:
            steps = self._all_to_all.steps(size_bytes)
            return replace(steps, launch_s=steps.launch_s + self._isolated_s)
        costs = self._costs(operation, size_bytes)
        cost = costs[0][0]
        factor = self._average_s(costs, size_bytes) / cost.time_s(size_bytes)
        if operation.rooted:
            return self._chain(operation, cost, factor, size_bytes)
        if cost.entry.algorithm in (RING, ALL_PAIRS):
            # A ring is stepped on one node for all where all are alike, else on every node.
            layout = self.layout if self.layout.wiring.uniform else self._expanded
            return nccl_steps.ring(self._timing(cost, factor, operation), layout, size_bytes, operation)
        timing, cut, window = self._timing(cost, factor), cost.pieces, window_of(cost.entry.protocol)
        if cost.entry.algorithm != TREE:
            return nccl_steps.in_switch(timing, self._expanded, size_bytes, cut, window)
        if cost.entry.protocol == LL:
            # A hop's latency holds the time of what it passes on at once.
            cut = window = ll_pieces(size_bytes / cost.rate * factor, timing.hop_s)
            inner_s, outer_s = (size_bytes / cut * factor / rate for rate in self._cost.hop_rates(cost))
            hop_s, net_s = max(timing.hop_s - inner_s, 0.0), max(timing.net_s - outer_s, 0.0)
            timing = replace(timing, hop_s=hop_s, net_s=net_s)
        return nccl_steps.tree(timing, self._expanded, size_bytes, cut, window)

    @cached_property
    def _all_to_all(self) -> AllToAll:
        placement, version = self.layout.placement, self.layout.shape.version
        ways = NcclPaths(join_by_nvlink(placement, version), self.calibration)
        return AllToAll(ways, self.layout.ranks, self.capacities)

    @property
    def _isolated_s(self) -> float:
        """What a collective that nothing went before takes longer to start."""
        return self._get["isolated_s"] if self._options.isolated else 0.0

    def _chain(self, operation: Operation, cost: Cost, factor: float, size_bytes: int) -> Steps:
        timing, protocol = self._timing(cost, factor, operation), cost.entry.protocol
        if cost.pieces:
            timing = replace(timing, pieces=cost.pieces, window=window_of(protocol))
        else:
            # A hop's latency holds the time of what it passes on at once.
            cut = ll_pieces(size_bytes / cost.rate * factor, timing.hop_s)
            piece_s = size_bytes / cut / cost.rate * factor
            hop_s, net_s = max(timing.hop_s - piece_s, 0.0), max(timing.net_s - piece_s, 0.0)
            timing = replace(timing, pieces=cut, window=cut, hop_s=hop_s, net_s=net_s)
        return nccl_steps.ring(timing, self.layout if self.layout.nodes == 1 else self._expanded, size_bytes, operation)

    @cached_property
    def _expanded(self) -> Layout:
        layout = self.layout
        return layout if layout.wiring.expand else Layout(layout.placement, layout.shape.version, expand=True)

    def _timing(self, cost: Cost, factor: float, operation: Operation = Operation.ALLREDUCE) -> nccl_steps.Timing:
        algorithm, protocol = cost.entry.algorithm, cost.entry.protocol
        ring, switch, pairs = algorithm in (RING, ALL_PAIRS), algorithm in (NVLS, NVLS_TREE), algorithm == ALL_PAIRS
        start_s = self._get["nvls.start_s"] if switch else self._cost.start_s(protocol)
        start_s = self._get["pairs.start_s"] if pairs else start_s
        share = operation.sent(self.layout.ranks)
        scale = factor if ring else factor * cost.slack
        return nccl_steps.Timing(
            start_s=(start_s + cost.before_s) * factor,
            hop_s=0.0 if switch or pairs else self._cost.hop_s(algorithm, protocol) * factor,
            net_s=self._cost.net_s(algorithm, protocol) * factor,
            rate=cost.rate * share / factor if ring else cost.ends / scale,
            net_rate=min(cost.ends, cost.net_ends) / scale,
            load_factors={group: scale / part for group, part in self._cost.reached(cost).items()},
        )

    def _average_s(self, costs: list[tuple[Cost, float]], size_bytes: int) -> float:
        """Return the geometric mean of the entries' times, weighted by how likely NCCL takes each."""
        total = sum(weight for _, weight in costs)
        time_s = math.exp(sum(weight * math.log(cost.time_s(size_bytes)) for cost, weight in costs) / total)
        if self._options.isolated:
            return time_s + self._get["isolated_s"]
        floor_s = self._options.gpus_per_process * self._get["launch_s"]
        return soft_max((time_s, floor_s))

    def _costs(self, operation: Operation, size_bytes: int) -> list[tuple[Cost, float]]:
        """Return the entries that may be taken, the cheapest by NCCL's belief first, with weights."""
        key = (operation, size_bytes)
        if key not in self._costs_of:
            self._costs_of[key] = self._find_costs(operation, size_bytes)
        return self._costs_of[key]

    def _find_costs(self, operation: Operation, size_bytes: int) -> list[tuple[Cost, float]]:
        if operation is Operation.ALLREDUCE:
            entries, allowed, table = self._entries, self._allowed, self.layout.estimate_us(size_bytes)
        else:
            entries = tuple(self._list_others(operation, size_bytes))
            allowed = list(range(len(entries)))
            table = tuple(entry.latency_us + size_bytes / (1000 * entry.bandwidth) for entry in entries)
        believed = sorted((table[index] * self._crossover(entries[index]), index) for index in allowed)
        least = believed[0][0]
        weights = [((least / us) ** _SHARPNESS - _LEAST_WEIGHT, index) for us, index in believed]
        return [
            (self._cost.of(entries[index], size_bytes, operation), weight) for weight, index in weights if weight > 0
        ]

    def _list_others(self, operation: Operation, size_bytes: int) -> Iterator[TuningEntry]:
        """Yield what NCCL may run an operation by, other than an allreduce, whatever algorithm that is forced to.

        A send and receive runs LL up to 16 KiB a channel (NCCL_P2P_LL_THRESHOLD, `src/enqueue.cc`).
        """
        entries = operation_table(self.layout.shape, operation)
        if operation is not Operation.SENDRECV:
            yield from entries
            return
        small = size_bytes <= _P2P_LL_BYTES * self.layout.rings and not self.layout.shape.simple_only
        yield from (entry for entry in entries if entry.protocol == (LL if small else SIMPLE))

    def _crossover(self, entry: TuningEntry) -> float:
        """Return by what NCCL's belief of `entry` is multiplied."""
        factor = self._get[f"crossover.{entry.protocol}"] if entry.protocol != SIMPLE else 1.0
        return factor * self._get["crossover.tree"] if entry.algorithm == TREE else factor


class NcclPaths(RankPaths):
    """Finds the ways between GPUs of a placement, which between nodes lead through the NIC nearest to each."""

    protocol = SIMPLE
    streams_per_group = 1

    def __init__(self, placement: Placement, calibration: Calibration) -> None:
        super().__init__(PlacementLinks(placement, expand=True), calibration)
        self.backend = calibration.backend
        self._found: dict[int, Paths] = {}
        self._near: dict[tuple[int, str], str] = {}

    def start_s(self, size_bytes: int) -> float:
        """Return the protocol's start."""
        return self.constant("start.simple_s")

    def connection(self, source: int, target: int) -> Connection:
        """Return the way from one rank to another."""
        way = list(self._list_links(source, target))
        self.capacities |= {placed.name: placed.link.bandwidth for placed, _, _ in way}
        loads = total_by_key(
            (placed.name, load / self.constant(f"efficiency.{group}.{SIMPLE}")) for placed, group, load in way
        )
        return Connection(self._hop_s(max((group for _, group, _ in way), key=GROUPS.index)), loads)

    def _hop_s(self, group: str) -> float:
        kind = group if group in (*DIRECT, NET) else "pcie"
        nics = [nic.latency_s for each in self.wiring.placement.classes for nic in each.template.nics]
        card_s = max(nics, default=0.0) * self.constant(f"nic.latency.{SIMPLE}") if group == NET else 0.0
        return self.constant(f"ring.hop.{kind}.{SIMPLE}_s") + card_s

    def _list_links(self, source: int, target: int) -> Iterator[tuple[PlacedLink, str, float]]:
        (here, first), (there, second) = map(self.place, (source, target))
        if here == there:
            yield from self._list_links_inside(here, first, second, to_nic=False)
            return
        out, back = self._find_nearest(here, first), self._find_nearest(there, second)
        yield from self._list_links_inside(here, first, out, to_nic=True)
        for placed in self.wiring.between(here, out, there, back):
            yield placed, NET, 1.0
        yield from self._list_links_inside(there, back, second, to_nic=True)

    def _list_links_inside(
        self, node: int, source: str, target: str, *, to_nic: bool
    ) -> Iterator[tuple[PlacedLink, str, float]]:
        for link, group, load in route_loads(self._paths(node)[source, target]):
            yield self.wiring.at(node, [link])[0], NET if to_nic and group != HOST else group, load

    def _find_nearest(self, node: int, gpu: str) -> str:
        if (node, gpu) not in self._near:
            paths = self._paths(node)
            names = [nic.name for nic in self.wiring.template(node).nics]
            self._near[node, gpu] = min(names, key=lambda nic: paths.distance(gpu, nic))
        return self._near[node, gpu]

    def _paths(self, node: int) -> Paths:
        if node not in self._found:
            used = self.wiring.placement.gpus(self.wiring.placement.class_of(node))
            self._found[node] = find_paths(self.wiring.template(node).select_gpus(used), pxn=False)
        return self._found[node]
