"""Allreduce patterns that NCCL does not run by itself, on the same links with the same constants: baselines to compare.

Each is a schedule of `schedules.py`, rank by rank on the expanded cluster, over NCCL's routes at the Simple protocol's
efficiencies. Its rate is what its own steps reach with no latency; its latency is that of its longest chain of steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import simpy

from ddpsim.collectives import schedules
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.nccl_layout import GROUPS, HOST, NET, NVLINK, NVSWITCH, route_loads
from ddpsim.collectives.routes import PlacedLink, Wiring
from ddpsim.collectives.schedules import Schedule
from ddpsim.collectives.steps import carry_out
from ddpsim.collectives.transport import Choice, Lane, Steps, Wire
from ddpsim.collectives.tuning import SIMPLE
from ddpsim.errors import TopologyError
from ddpsim.fairness import Demand, LinkId
from ddpsim.network import Network
from ddpsim.topology.graph import Placement
from ddpsim.topology.paths import KINDS, Paths, find_paths

PATTERNS = ("two-level", "halving-doubling", "gather-broadcast")

_MOST_RANKS = 256
_WINDOW = 8
_PROBE_BYTES = 1 << 30


class PatternTransport:
    """A schedule on a placement of GPUs.

    Args:
        algorithm: one of `PATTERNS`.

    Raises:
        TopologyError: more ranks than are expanded, or two-level on one node.
    """

    backend = "nccl"
    streams_per_group = 1

    def __init__(self, placement: Placement, calibration: Calibration, algorithm: str) -> None:
        if placement.world_size > _MOST_RANKS:
            raise TopologyError(
                f"{algorithm} on {placement.world_size} ranks", place="--algorithm", remedy=f"{_MOST_RANKS} at most"
            )
        self.calibration, self._algorithm = calibration, algorithm
        self._placement, self._wiring = placement, Wiring(placement, expand=True)
        self._wires: dict[tuple[int, int], Wire] = {}
        self._links: dict[LinkId, float] = {}
        self._schedule = self._scheduled()
        for transfer in self._schedule.transfers:
            self._wire(transfer.source, transfer.target)

    @property
    def capacities(self) -> Mapping[LinkId, float]:
        """Bytes per second of every link on the way of some transfer."""
        return self._links

    def choice(self, size_bytes: int) -> Choice:
        """Return the pattern."""
        return Choice(self._algorithm, SIMPLE, 1)

    def allreduce(self, size_bytes: int) -> Demand:
        """Return the longest chain's latency and all the bytes of the schedule at the rate of its steps."""
        start_s = self.calibration["nccl.start.simple_s"]
        if not self._schedule.transfers or size_bytes == 0:
            return Demand(start_s, 0, {})
        loads: dict[LinkId, float] = {}
        for transfer in self._schedule.transfers:
            part = (transfer.stop - transfer.start) / self._schedule.chunks
            for link, load in self._wire(transfer.source, transfer.target).loads.items():
                loads[link] = loads.get(link, 0.0) + load * part
        return Demand(start_s + self._latency_s(), size_bytes, loads, self._rate)

    def allreduce_s(self, size_bytes: int) -> float:
        """Return the time of an allreduce with nothing else in flight."""
        demand = self.allreduce(size_bytes)
        return demand.latency_s + (demand.size_bytes / self._rate if demand.loads else 0.0)

    def broadcast(self, size_bytes: int) -> Demand:
        """Return half of an allreduce: the way back."""
        demand = self.allreduce(size_bytes)
        halves = {link: load / 2 for link, load in demand.loads.items()}
        return Demand(demand.latency_s / 2, demand.size_bytes, halves, 2 * demand.rate_limit)

    def steps(self, size_bytes: int) -> Steps:
        """Return every transfer of the schedule."""
        return Steps(self.calibration["nccl.start.simple_s"], (self._lane(size_bytes),) if size_bytes else ())

    @cached_property
    def _rate(self) -> float:
        env = simpy.Environment()
        lane = self._lane(_PROBE_BYTES, latency=False)
        env.run(carry_out(Network(env, self._links), Steps(0.0, (lane,))))
        return float(_PROBE_BYTES / env.now)

    def _lane(self, size_bytes: float, *, latency: bool = True) -> Lane:
        def wire(source: int, target: int) -> Wire:
            found = self._wire(source, target)
            return found if latency else Wire(0.0, found.loads)

        return Lane(self._schedule, size_bytes / self._schedule.chunks, wire, _WINDOW)

    def _latency_s(self) -> float:
        ends: list[float] = []
        for transfer in self._schedule.transfers:
            before = max((ends[number] for number in transfer.after), default=0.0)
            ends.append(before + self._wire(transfer.source, transfer.target).latency_s)
        return max(ends)

    def _scheduled(self) -> Schedule:
        ranks = self._placement.world_size
        if ranks == 1:
            return Schedule(1, 1, ())
        if self._algorithm == "halving-doubling":
            return schedules.halving_doubling(ranks)
        if self._algorithm == "gather-broadcast":
            return schedules.gather_and_broadcast(ranks)
        if self._placement.nodes == 1:
            raise TopologyError("two-level on one node", place="--algorithm", remedy="use ring, or several --nodes")
        return schedules.two_level(self._placement.nodes, self._placement.gpus_per_node)

    def _wire(self, source: int, target: int) -> Wire:
        if (source, target) not in self._wires:
            way = list(self._way(source, target))
            loads: dict[LinkId, float] = {}
            for placed, group, load in way:
                self._links[placed.name] = placed.link.bandwidth
                efficiency = self.calibration[f"nccl.efficiency.{group}.{SIMPLE}"]
                loads[placed.name] = loads.get(placed.name, 0.0) + load / efficiency
            kind = max((group for _, group, _ in way), key=GROUPS.index)
            self._wires[source, target] = Wire(self._hop_s(kind), loads)
        return self._wires[source, target]

    def _hop_s(self, group: str) -> float:
        kind = group if group in (NVLINK, NVSWITCH, NET) else "pcie"
        nics = [nic.latency_s for each in self._placement.classes for nic in each.template.nics]
        card_s = max(nics, default=0.0) * self.calibration[f"nccl.nic.latency.{SIMPLE}"] if group == NET else 0.0
        return self.calibration[f"nccl.ring.hop.{kind}.{SIMPLE}_s"] + card_s

    def _way(self, source: int, target: int) -> Iterator[tuple[PlacedLink, str, float]]:
        (here, first), (there, second) = map(self._gpu, (source, target))
        if here == there:
            yield from self._inside(here, first, second, to_nic=False)
            return
        out, back = self._nearest(here, first), self._nearest(there, second)
        yield from self._inside(here, first, out, to_nic=True)
        for placed in self._wiring.between(here, out, there, back):
            yield placed, NET, 1.0
        yield from self._inside(there, back, second, to_nic=True)

    def _gpu(self, rank: int) -> tuple[int, str]:
        node, index, kind = self._placement.node_of(rank)
        return node, self._placement.gpus(kind)[index]

    def _inside(self, node: int, source: str, target: str, *, to_nic: bool) -> Iterator[tuple[PlacedLink, str, float]]:
        for link, group, load in route_loads(self._paths(node)[source, target]):
            yield self._wiring.at(node, [link])[0], NET if to_nic and group != HOST else group, load

    def _nearest(self, node: int, gpu: str) -> str:
        paths = self._paths(node)
        names = [nic.name for nic in self._wiring.template(node).nics]
        return min(names, key=lambda nic: KINDS.index(paths[gpu, nic].kind))

    def _paths(self, node: int) -> Paths:
        return find_paths(self._wiring.template(node), pxn=False)
