"""What a pattern loads: bytes on links by kind of hop, and what each kind then allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from ddpsim.collectives.network.fairness import LinkId
from ddpsim.collectives.routes import PlacedLink
from ddpsim.topology.graph import Link, NodeTemplate
from ddpsim.topology.node import VertexKind
from ddpsim.topology.paths import Route

NVLINK, NVSWITCH, XGMI, PCIE, HOST, NET = "nvlink", "nvswitch", "xgmi", "pcie", "host", "net"
HOST_TO_NIC = "host to nic"
"""Of a ring whose cards exchange nothing through host memory, while NICs take it from there."""
GROUPS = (NVLINK, NVSWITCH, XGMI, PCIE, HOST, NET)
"""Kinds of hops that differ in efficiency, the slowest last: NVLink from GPU to GPU, NVLink through a switch, AMD's
xGMI, peer-to-peer over PCIe, through host memory, to another node."""
DIRECT = (NVLINK, NVSWITCH, XGMI)
"""Those that no PCIe link is part of."""

_GROUP_OF = {"nic": NET, "network": NET}


@dataclass(frozen=True, slots=True)
class Load:
    """The bytes that a link carries for a byte of the message, as part of a kind of hop."""

    link: PlacedLink
    group: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Pattern:
    """The loads of a pattern, all channels together.

    Attributes:
        rates: message bytes per second that each group of links allows at efficiency 1.
        mixed: the same of each link that hops of several kinds load; it carries all of them.
        port: bytes that the busiest port of a card carries for a byte of the message; 0 inside a node.
    """

    loads: tuple[Load, ...]
    rates: Mapping[str, float]
    port: float = 0.0
    mixed: tuple[Mapping[str, float], ...] = ()

    @classmethod
    def of(cls, loads: Iterable[Load]) -> Pattern:
        """Return the pattern, loads of one link and group added up."""
        total: dict[tuple[LinkId, str], Load] = {}
        for load in loads:
            key = (load.link.name, load.group)
            before = total[key].bytes if key in total else 0.0
            total[key] = Load(load.link, load.group, before + load.bytes)
        rates: dict[str, float] = {}
        by_link: dict[LinkId, dict[str, float]] = {}
        for load in total.values():
            rate = load.link.link.bandwidth / load.bytes
            rates[load.group] = min(rates.get(load.group, rate), rate)
            by_link.setdefault(load.link.name, {})[load.group] = rate
        mixed = tuple({tuple(each.items()): each for each in by_link.values() if len(each) > 1}.values())
        port = max((load.bytes for load in total.values() if load.link.link.kind == "nic"), default=0.0)
        return cls(tuple(total.values()), rates, port, mixed)


def route_loads(route: Route) -> Iterator[tuple[Link, str, float]]:
    """Yield each link of a route, the kind of hop it is part of, and its bytes for a byte of the message."""
    for link, load in route.moved():
        if link.kind == "nvlink":
            yield link, NVSWITCH if link.at(VertexKind.NVSWITCH) else NVLINK, load
        elif link.kind == XGMI:
            yield link, XGMI, load
        else:
            yield link, _GROUP_OF.get(link.kind, _name_host_hop(link) if route.through_host else PCIE), load


def _name_host_hop(link: Link) -> str:
    """Return the kind of hop of a link through host memory, which a card of the network reads and writes itself."""
    return NET if link.at(VertexKind.NIC) or link.at(VertexKind.ADAPTER) else HOST


def reverse_route(template: NodeTemplate, route: Route) -> Route:
    """Return the way back over the same links."""
    links = {(link.source, link.target): link for link in template.links}
    back = tuple(links[link.target, link.source] for link in reversed(route.links))
    return replace(route, source=route.target, target=route.source, links=back)


def route_group(route: Route) -> str:
    """Return the slowest kind of hop on a route."""
    return max((group for _, group, _ in route_loads(route)), key=GROUPS.index, default=NVLINK)
