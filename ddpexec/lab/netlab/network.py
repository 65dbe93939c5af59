"""What a lab network is made of: hosts that hold ranks, switches, and directed wires with a rate and a delay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import networkx as nx

from ddpsim.common.errors import TopologyError

SUBNET = "10.77.0"
MAX_HOSTS = 250
"""The most hosts a lab may have: the last byte of an address in `SUBNET` numbers them."""
TCP_HEADER_BYTES = 66
"""Ethernet, IPv4 and TCP headers with time stamps: what each packet of at most `SEGMENT_BYTES` adds on the wire."""
SEGMENT_BYTES = 1448
"""Payload of a full packet: 1500 bytes of Ethernet without 20 of IPv4, 20 of TCP and 12 of its time stamps."""


@dataclass(frozen=True, slots=True)
class Host:
    """A host stands for a machine of the lab: it has a network namespace, an address, and one or more ranks."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinkDirection:
    """One direction of a cable: `rate` in bytes/s of whole packets, `delay_s` on top of the time to send them."""

    source: str
    target: str
    rate: float
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LabNetwork:
    """Hosts, and the wires between them and the switches.

    Raises:
        TopologyError: no host, too many of them, a wire to nowhere, or two hosts that cannot reach each other.
    """

    hosts: tuple[Host, ...]
    switches: tuple[str, ...]
    wires: tuple[LinkDirection, ...]
    routes: Mapping[tuple[int, int], tuple[int, ...]] = field(init=False, repr=False)
    """Indices of the wires from host to host, by their indices."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.hosts) <= MAX_HOSTS:
            raise TopologyError(f"{len(self.hosts)} hosts", remedy=f"a lab network has 1 to {MAX_HOSTS}")
        names = {*(host.name for host in self.hosts), *self.switches}
        for wire in self.wires:
            if not {wire.source, wire.target} <= names:
                raise TopologyError(f"the wire {wire.source} -> {wire.target} leads nowhere")
        object.__setattr__(self, "routes", dict(self._routes()))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def delayed(self) -> bool:
        """Whether any wire has a delay, which shaping by rate alone cannot give."""
        return any(wire.delay_s > 0 for wire in self.wires)

    @property
    def is_tree(self) -> bool:
        """Whether there is one path only between any two hosts, as bridges without spanning tree need it."""
        graph = nx.Graph((wire.source, wire.target) for wire in self.wires)
        return len(self.hosts) == 1 or nx.is_tree(graph)

    def offered_rate(self) -> float:
        """Return the bytes/s that all hosts together can send at once."""
        names = {host.name for host in self.hosts}
        return sum(wire.rate for wire in self.wires if wire.source in names)

    def address(self, host: int) -> str:
        """Return the IPv4 address of the `host`-th host."""
        return f"{SUBNET}.{host + 1}"

    def _routes(self) -> Iterator[tuple[tuple[int, int], tuple[int, ...]]]:
        graph = nx.DiGraph()
        for index, wire in enumerate(self.wires):
            graph.add_edge(wire.source, wire.target, index=index)
        for i, source in enumerate(self.hosts):
            for j, target in enumerate(self.hosts):
                if i == j:
                    continue
                try:
                    path = nx.shortest_path(graph, source.name, target.name)
                except (nx.NetworkXNoPath, nx.NodeNotFound):
                    raise TopologyError(
                        f"{source.name} cannot reach {target.name}", remedy="connect both to the fabric"
                    ) from None
                yield (i, j), tuple(graph.edges[a, b]["index"] for a, b in pairwise(path))


def wire_bytes(payload_bytes: int) -> int:
    """Return the bytes that `payload_bytes` of a TCP stream take on a wire, headers of full packets included."""
    packets = -(-payload_bytes // SEGMENT_BYTES)
    return payload_bytes + packets * TCP_HEADER_BYTES
