"""NCCL's and RCCL's ways between any two GPUs: its routes, at the Simple protocol's efficiencies and latencies."""

from __future__ import annotations

from collections.abc import Iterator

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.nccl.loads import DIRECT, GROUPS, HOST, NET, route_loads
from ddpsim.collectives.nccl.versions import SIMPLE
from ddpsim.collectives.rank_ways import RankPaths
from ddpsim.collectives.routes import PlacedLink, PlacementLinks, total_by_key
from ddpsim.collectives.transport import Connection
from ddpsim.topology.graph import Placement
from ddpsim.topology.paths import Paths, find_paths


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
