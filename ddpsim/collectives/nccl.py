"""NCCL: rings, trees and in-switch reduction over the channels of a placement, with protocols as NCCL picks them.

The time of an algorithm and protocol is a start, a latency for each step, and the bytes at the rate of the slower of
two: the links at the protocol's efficiency, and the channels in use at what one channel's threads can move. Small
messages use few channels: NCCL gives each thread at least 8 bytes (LL, LL128; times p on an LL ring) or 64 (Simple),
`enqueue.cc`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ddpsim.collectives import nccl_priors, nccl_steps
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.nccl_layout import GROUPS, NET, Layout, Pattern
from ddpsim.collectives.patterns import PATTERNS
from ddpsim.collectives.transport import Choice, Steps
from ddpsim.collectives.tuning import LL, LL128, NVLS, NVLS_TREE, RING, SIMPLE, TREE, Entry, ll_max
from ddpsim.errors import TopologyError, UnknownNameError
from ddpsim.fairness import Demand, LinkId

PRIORS = nccl_priors.PRIORS
ALGORITHMS = (RING, TREE, NVLS, NVLS_TREE)

_THREADS = {LL: 512, LL128: 640, SIMPLE: 512}
_BYTES_PER_THREAD = {LL: 8, LL128: 8, SIMPLE: 64}
_MAX_CHANNELS = 32
_SHARPNESS = 30.0
"""How firmly the cheaper of NCCL's entries is taken: near a crossover the time is between those of both."""

_LEAST_WEIGHT = 0.1
"""Weight, of one the cheapest has, below which an entry is out."""

_CORNER = 8.0
"""Exponent of the norm that joins two limits on a rate; large is a sharp corner."""


@dataclass(frozen=True, slots=True)
class _Cost:
    entry: Entry
    channels: int
    latency_s: float
    rate: float

    def time_s(self, size_bytes: float) -> float:
        return self.latency_s + size_bytes / self.rate


class NcclTransport:
    """NCCL on a placement.

    Args:
        layout: the placement's channels.
        calibration: constants; the priors where None.
        algorithm: `ring`, `tree`, `nvls` or `nvls_tree` to force one.
        isolated: a collective by itself, as DDP issues them, or one of many back to back as in nccl-tests.
        gpus_per_process: GPUs that one process launches on, one after the other.

    Raises:
        UnknownNameError: an algorithm that is not modelled.
        TopologyError: an algorithm that the machine cannot run.
    """

    backend = "nccl"
    streams_per_group = 1

    def __init__(
        self,
        layout: Layout,
        calibration: Calibration | None = None,
        *,
        algorithm: str = "auto",
        isolated: bool = True,
        gpus_per_process: int = 1,
    ) -> None:
        if algorithm not in ("auto", *ALGORITHMS):
            known = ("auto", *ALGORITHMS, *PATTERNS)
            raise UnknownNameError.among("algorithm", algorithm, known, place="--algorithm")
        self.calibration = calibration or Calibration("nccl", {constant.name: constant for constant in PRIORS})
        self.layout = layout
        self._isolated, self._gpus_per_process = isolated, gpus_per_process
        self._get = {name.removeprefix("nccl."): c.value for name, c in self.calibration.constants.items()}
        self._entries = layout.entries
        self._allowed = [i for i, e in enumerate(layout.entries) if algorithm in ("auto", e.algorithm)]
        if not self._allowed:
            raise TopologyError(
                f"{algorithm} cannot run on {layout.placement.topology.name}", place="--algorithm", remedy="use auto"
            )
        self.capacities: Mapping[LinkId, float] = layout.capacities

    def choice(self, size_bytes: int) -> Choice:
        """Return the entry of NCCL's table that it believes is fastest, with the channels it uses."""
        cost = self._costs(size_bytes)[0][0]
        return Choice(cost.entry.algorithm, cost.entry.protocol, cost.channels)

    def allreduce(self, size_bytes: int) -> Demand:
        """Return the chosen pattern's latency, loads and rate; near a crossover scaled to lie between both sides."""
        if self.layout.ranks == 1 or size_bytes == 0:
            return Demand(self._start_s(SIMPLE), 0, {})
        costs = self._costs(size_bytes)
        cost, time_s = costs[0][0], self._joined_s(costs, size_bytes)
        factor = time_s / cost.time_s(size_bytes)
        pattern = self._pattern(cost.entry)
        loads: dict[LinkId, float] = {}
        for load in pattern.loads:
            value = load.bytes * factor / self._efficiency(load.group, cost.entry.protocol)
            loads[load.link.name] = loads.get(load.link.name, 0.0) + value
        # A ring's latencies lie between its steps. Trees are one message, their latency before it.
        stall_s = (
            (cost.latency_s - self._start_s(cost.entry.protocol)) * factor if cost.entry.algorithm == RING else 0.0
        )
        return Demand(
            cost.latency_s * factor - stall_s,
            size_bytes,
            loads,
            cost.rate / factor,
            stall_s=stall_s,
            hops=self._hops(cost.entry.protocol),
        )

    def _hops(self, protocol: str) -> tuple[tuple[float, float], ...]:
        """Return the parts of a ring's hops between nodes and inside, with their links' room over the tightest."""
        rates = {group: rate * self._efficiency(group, protocol) for group, rate in self.layout.ring.rates.items()}
        tightest = min(rates.values())
        if NET not in rates:
            return ((1.0, 1.0),)
        across, inside = rates.pop(NET), min(rates.values(), default=tightest)
        part = 1 / self.layout.per_node
        return ((part, across / tightest), (1 - part, inside / tightest))

    def allreduce_s(self, size_bytes: int) -> float:
        """Return the time of an allreduce with nothing else in flight."""
        if self.layout.ranks == 1 or size_bytes == 0:
            return self._start_s(SIMPLE)
        return self._joined_s(self._costs(size_bytes), size_bytes)

    def broadcast(self, size_bytes: int) -> Demand:
        """Return a chain along the rings, each link of which carries the message once."""
        if self.layout.ranks == 1 or size_bytes == 0:
            return Demand(self._start_s(SIMPLE), 0, {})
        protocol = LL if size_bytes < 65536 else SIMPLE
        entry = Entry(RING, protocol, 0.0, 1.0)
        cost = self._cost(entry, size_bytes)
        share = self.layout.ranks / (2 * (self.layout.ranks - 1))
        loads: dict[LinkId, float] = {}
        for load in self.layout.ring.loads:
            value = load.bytes * share / self._efficiency(load.group, protocol)
            loads[load.link.name] = loads.get(load.link.name, 0.0) + value
        return Demand(self._start_s(protocol) + cost.latency_s / 2, size_bytes, loads, cost.rate / share)

    def steps(self, size_bytes: int) -> Steps:
        """Return the chosen ring or tree transfer by transfer, scaled as `allreduce` is."""
        if self.layout.ranks == 1 or size_bytes == 0:
            return Steps(self._start_s(SIMPLE), ())
        costs = self._costs(size_bytes)
        cost = costs[0][0]
        factor = self._joined_s(costs, size_bytes) / cost.time_s(size_bytes)
        start_s = self._start_s(cost.entry.protocol)
        if cost.entry.algorithm == RING:
            return nccl_steps.ring(self._timing(cost, start_s, factor), self._stepped(), size_bytes)
        return nccl_steps.whole(self.allreduce(size_bytes))

    def _stepped(self) -> Layout:
        """Return a layout whose ring can be stepped: one node for all where all are alike, else every node."""
        if self.layout.wiring.uniform or self.layout.wiring.expand:
            return self.layout
        return Layout(self.layout.placement, self.layout.shape.version, expand=True)

    def _timing(self, cost: _Cost, start_s: float, factor: float) -> nccl_steps.Timing:
        algorithm, protocol = cost.entry.algorithm, cost.entry.protocol
        share = 2 * (self.layout.ranks - 1) / self.layout.ranks
        return nccl_steps.Timing(
            start_s=start_s * factor,
            hop_s=self._hop_s(algorithm, protocol) * factor,
            net_s=self._net_s(algorithm, protocol) * factor,
            rate=cost.rate * share / factor,
            load_factors={group: factor / self._efficiency(group, protocol) for group in GROUPS},
        )

    def _joined_s(self, costs: list[tuple[_Cost, float]], size_bytes: int) -> float:
        """Return the geometric mean of the entries' times, weighted by how likely NCCL takes each."""
        total = sum(weight for _, weight in costs)
        time_s = math.exp(sum(weight * math.log(cost.time_s(size_bytes)) for cost, weight in costs) / total)
        if self._isolated:
            return time_s + self._get["isolated_s"]
        floor_s = self._gpus_per_process * self._get["launch_s"]
        return float((time_s**_CORNER + floor_s**_CORNER) ** (1 / _CORNER))

    def _costs(self, size_bytes: int) -> list[tuple[_Cost, float]]:
        """Return the entries that may be taken, the cheapest by NCCL's belief first, with weights."""
        table = self.layout.believed_us(size_bytes)
        believed = sorted((table[index] * self._crossover(self._entries[index]), index) for index in self._allowed)
        least = believed[0][0]
        weights = [((least / us) ** _SHARPNESS - _LEAST_WEIGHT, index) for us, index in believed]
        return [(self._cost(self._entries[index], size_bytes), weight) for weight, index in weights if weight > 0]

    def _crossover(self, entry: Entry) -> float:
        """Return by what NCCL's belief of `entry` is multiplied."""
        factor = self._get[f"crossover.{entry.protocol}"] if entry.protocol != SIMPLE else 1.0
        return factor * self._get["crossover.tree"] if entry.algorithm == TREE else factor

    def _cost(self, entry: Entry, size_bytes: int) -> _Cost:
        algorithm, protocol = entry.algorithm, entry.protocol
        channels = self._channels(entry, size_bytes)
        latency_s = self._start_s(protocol) + self._latency_s(algorithm, protocol)
        pattern = self._pattern(entry)
        links = min(rate * self._efficiency(group, protocol) for group, rate in pattern.rates.items())
        if algorithm in (NVLS, NVLS_TREE):
            latency_s += self._get["nvls.start_s"] - self._start_s(protocol)
            return _Cost(entry, channels, latency_s, links * self._get["nvls.efficiency"])
        sent = 2 * (self.layout.ranks - 1) / self.layout.ranks if algorithm == RING else 2.0
        threads = channels * self._get[f"channel.{protocol}"] / sent
        limits = [links, threads]
        if protocol == LL:
            place = "node" if self.layout.nodes == 1 else "net"
            limits.append(ll_max(self.layout.shape) * 1e9 * self._get[f"ll_max_share.{place}"] / sent)
        rate = sum(limit**-_CORNER for limit in limits) ** (-1 / _CORNER)
        return _Cost(entry, channels, latency_s, rate)

    def _channels(self, entry: Entry, size_bytes: int) -> int:
        protocol = entry.protocol
        least = _THREADS[protocol] * _BYTES_PER_THREAD[protocol]
        if (entry.algorithm, protocol) == (RING, LL):
            least *= self.layout.ranks
        return max(1, min(size_bytes // least, 2 * self.layout.rings, _MAX_CHANNELS))

    def _pattern(self, entry: Entry) -> Pattern:
        layout = self.layout
        return {RING: layout.ring, TREE: layout.tree, NVLS: layout.nvls, NVLS_TREE: layout.nvls_tree}[entry.algorithm]

    def _efficiency(self, group: str, protocol: str) -> float:
        return self._get[f"efficiency.{group}.{protocol}"]

    def _start_s(self, protocol: str) -> float:
        return self._get[f"start.{protocol}_s"]

    def _hop_s(self, algorithm: str, protocol: str) -> float:
        kind = self.layout.hop if self.layout.shape.nvlink else "pcie"
        return self._get[f"{algorithm}.hop.{kind}.{protocol}_s"]

    def _net_s(self, algorithm: str, protocol: str) -> float:
        pattern = RING if algorithm == RING else TREE
        card_s = self.layout.nic_latency_s * self._get[f"nic.latency.{protocol}"]
        return self._get[f"{pattern}.hop.net.{protocol}_s"] + card_s

    def _latency_s(self, algorithm: str, protocol: str) -> float:
        """Return the steps' latencies: 2(p-1) hops around the ring, or to the root of the tree and back."""
        layout = self.layout
        outer = layout.crossings if algorithm == RING else 2 * math.floor(math.log2(layout.nodes))
        outer_s = outer * self._net_s(algorithm, protocol) if outer else 0.0
        if algorithm in (NVLS, NVLS_TREE):
            return outer_s
        inner = 2 * (layout.ranks - 1) - outer if algorithm == RING else 2 * (layout.per_node - 1)
        return inner * self._hop_s(algorithm, protocol) + outer_s
