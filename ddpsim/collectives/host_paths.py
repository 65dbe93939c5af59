"""Ways between any two ranks over the host: inside a machine, and by each node's first NIC between nodes."""

from __future__ import annotations

import math
from dataclasses import replace

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.routes import PlacedLink, PlacementLinks
from ddpsim.collectives.transport import Connection
from ddpsim.network.fairness import LinkId
from ddpsim.topology.graph import Link
from ddpsim.topology.node import HOST_IN, HOST_OUT
from ddpsim.topology.paths import find_paths

_HOST = Link.between(HOST_OUT, HOST_IN, "loopback", math.nan)
Hop = tuple[PlacedLink, ...]


class HostPaths:
    """Finds the ways that messages of tensors in host memory take between ranks of a placement.

    A backend is a subclass, whose constants are called by its name: `launch_s`, `step_s`, `round_trips`,
    `efficiency.network`, `efficiency.loopback`, `host.bandwidth`, `staging.efficiency`.
    """

    backend: str
    protocol = "tcp"
    streams_per_group: int

    def __init__(self, wiring: PlacementLinks, calibration: Calibration) -> None:
        self.wiring, self.calibration = wiring, calibration
        self.capacities: dict[LinkId, float] = {}

    def start_s(self, size_bytes: int) -> float:
        """Return the cost of the call, and of staging the tensor in host memory and back where it is a GPU's."""
        launch_s = self.constant("launch_s")
        template = self.wiring.template(0)
        if template.gpus[0].sm == 0:
            return launch_s
        slowest = min(link.bandwidth for link in template.links if link.kind in ("pcie", "host_bridge"))
        return launch_s + 2 * size_bytes / (slowest * self.constant("staging.efficiency"))

    def connection(self, source: int, target: int) -> Connection:
        """Return the way from one rank to another, with what precedes each message."""
        hop = self.hop(source, target)
        self.capacities |= {each.name: each.link.bandwidth for each in hop}
        return Connection(self.hop_s(hop), self.loads(hop))

    def hop(self, source: int, target: int) -> Hop:
        """Return the links from one rank to another."""
        (here, first), (there, second) = map(self._place, (source, target))
        return self.inside(here, first, second) if here == there else self.across(here, there)

    def hop_s(self, hop: Hop) -> float:
        """Return the time of a handshake over `hop`."""
        return self.constant("step_s") + self.round_trip_s(hop)

    def round_trip_s(self, hop: Hop) -> float:
        """Return the time of a message's way there and an answer's back."""
        return self.constant("round_trips") * 2 * sum(each.link.latency_s for each in hop)

    def loads(self, hop: Hop) -> dict[LinkId, float]:
        """Return bytes on each link of `hop` for a byte sent, headers included."""
        return {each.name: 1 / self._efficiency(each.link) for each in hop}

    def inside(self, node: int, source: str, target: str) -> Hop:
        """Return the hop between two ranks of a node."""
        template = self.wiring.template(node)
        if template.gpus[0].sm == 0:
            return self.wiring.at(node, find_paths(template)[source, target].links)
        return self.wiring.at(node, [replace(_HOST, bandwidth=self.constant("host.bandwidth"))])

    def across(self, source: int, target: int) -> Hop:
        """Return the hop from a node to another, by the first NIC of each."""
        nics = [self.wiring.template(node).nics[0].name for node in (source, target)]
        return self.wiring.between(source, nics[0], target, nics[1])

    def constant(self, name: str) -> float:
        """Return the backend's constant of that name."""
        return self.calibration[f"{self.backend}.{name}"]

    def _efficiency(self, link: Link) -> float:
        return self.constant(f"efficiency.{'loopback' if link.kind == 'loopback' else 'network'}")

    def _place(self, rank: int) -> tuple[int, str]:
        node, index, kind = self.wiring.placement.node_of(rank)
        return node, self.wiring.placement.gpus(kind)[index]
