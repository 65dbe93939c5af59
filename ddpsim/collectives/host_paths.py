"""Ways between any two ranks over the host: inside a machine, and by each node's first NIC between nodes."""

from __future__ import annotations

import math
from dataclasses import replace

from ddpsim.collectives.network.fairness import LinkId
from ddpsim.collectives.routes import PlacedLink
from ddpsim.collectives.schedules import Connection
from ddpsim.collectives.transport import RankPaths
from ddpsim.topology.graph import Link
from ddpsim.topology.node import HOST_IN, HOST_OUT
from ddpsim.topology.paths import find_paths

_HOST = Link.between(HOST_OUT, HOST_IN, "loopback", math.nan)
Hop = tuple[PlacedLink, ...]


class HostPaths(RankPaths):
    """Finds the ways that messages of tensors in host memory take between ranks of a placement.

    A backend is a subclass, whose constants are called by its name: `launch_s`, `step_s`, `round_trips`,
    `efficiency.network`, `efficiency.loopback`, `host.bandwidth`, `staging.efficiency`.
    """

    protocol = "tcp"

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
        (here, first), (there, second) = map(self.place, (source, target))
        return self.inside(here, first, second) if here == there else self.across(here, there)

    def hop_s(self, hop: Hop) -> float:
        """Return the time of a handshake over `hop`."""
        return self.constant("step_s") + self.round_trip_s(hop)

    def round_trip_s(self, hop: Hop) -> float:
        """Return the time of a message's way there and an answer's back."""
        return self.constant("round_trips") * 2 * sum(each.link.latency_s for each in hop)

    def loads(self, hop: Hop) -> dict[LinkId, float]:
        """Return bytes on each link of `hop` for a byte sent, headers included."""
        kinds = {each.name: "loopback" if each.link.kind == "loopback" else "network" for each in hop}
        return {name: 1 / self.constant(f"efficiency.{kind}") for name, kind in kinds.items()}

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
