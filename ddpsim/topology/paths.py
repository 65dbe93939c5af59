"""Routes between the devices of a node, as NCCL chooses them; xGMI counts as NVLink does, as in RCCL.

Source: NCCL 2.30 `src/graph/paths.cc`: fewest links first, then most bandwidth; through another GPU only by NVLink and
only one; peer-to-peer up to PXB, else through host memory; to a NIC directly up to PXB (`NCCL_NET_GDR_LEVEL`), else
through host memory, or by PXN through a GPU that is near the NIC.

Start at `Paths.__getitem__`; `Route` is the result, `_search` finds the ways of the fewest links.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from ddpsim.common.errors import TopologyError
from ddpsim.topology.hardware import INTEL_P2P_OVERHEAD, SHARED_UPLINK, SOCKET_ROOM, gpu_facts
from ddpsim.topology.node import GPU_LINKS, Link, NodeTemplate, VertexKind

KINDS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS")
"""Path kinds, near to far."""


_APART = KINDS.index("DIS")


def farther(first: str, second: str) -> str:
    """Return the farther of two path kinds."""
    return max(first, second, key=KINDS.index)


@dataclass(frozen=True, slots=True)
class Route:
    """How bytes go from one device to another.

    Attributes:
        kind: one of `KINDS`.
        through_host: whether they rest in host memory on the way.
        pcie_overhead: bytes moved over each PCIe link for a byte of the message, as NCCL counts them; 6/5 through an
            Intel root complex.
        shared: PCIe switches with several GPUs below that do not reach each other: their uplinks carry the bytes of
            each.
    """

    source: str
    target: str
    links: tuple[Link, ...]
    kind: str
    through_host: bool = False
    pcie_overhead: float = 1.0
    shared: frozenset[str] = frozenset()

    def loads(self) -> Iterator[tuple[Link, float]]:
        """Yield each link with the bytes it carries for a byte of the message, as NCCL counts them."""
        for link in self.links:
            yield link, self.pcie_overhead if link.kind in ("pcie", "host_bridge") else 1.0

    def moved(self) -> Iterator[tuple[Link, float]]:
        """Yield each link with what it carries for a byte of the message, as a share of what NCCL counts it to carry.

        From card to card through host memory each slot carries its card's bytes, out and in, without what peers waste
        in a root complex; a switch's uplink those of the cards below it; links between sockets have room.
        """
        if (
            not self.through_host
            or self.links[0].source_kind != VertexKind.GPU
            or self.links[-1].target_kind != VertexKind.GPU
        ):
            yield from self.loads()
            return
        for link in self.links:
            uplink = link.kind == "host_bridge" and not self.shared.isdisjoint((link.source, link.target))
            yield link, 1 / SOCKET_ROOM if link.kind == "socket" else SHARED_UPLINK if uplink else 1.0

    @property
    def bandwidth(self) -> float:
        """Message bytes per second that the route sustains alone."""
        return min((link.bandwidth / load for link, load in self.loads()), default=float("inf"))

    @property
    def latency_s(self) -> float:
        """One-way delay of its links."""
        return sum(link.latency_s for link in self.links)


class Paths:
    """Finds the routes of one template, each when it is first asked for.

    Args:
        pxn: whether a GPU may reach a far NIC through a GPU near it, over NVLink (`NCCL_PXN_DISABLE=0`).
        gpudirect: overrides what the NICs say; None keeps it.
    """

    def __init__(self, template: NodeTemplate, *, pxn: bool = True, gpudirect: bool | None = None) -> None:
        self._template, self._pxn, self._gpudirect = template, pxn, gpudirect
        self._out: dict[str, list[Link]] = {}
        for link in sorted(template.links, key=lambda link: -link.bandwidth):
            self._out.setdefault(link.source, []).append(link)
        self._parents = template.parents()
        self._nics = {nic.name: nic for nic in template.nics}
        self._near_peers: dict[str, list[str]] = {}
        self._nearest: dict[str, dict[str, tuple[Link, ...]]] = {}
        self._routes: dict[tuple[str, str], Route] = {}
        self._reach = _peer_to_peer_reach(template)
        near = KINDS.index(self._reach) >= KINDS.index("PIX")
        self._shared = frozenset() if near else _find_shared(template, self._parents)

    def __getitem__(self, ends: tuple[str, str]) -> Route:
        """Return the route between two devices, e.g. `("gpu0", "nic1")`.

        Raises:
            TopologyError: where the one cannot reach the other.
        """
        if ends not in self._routes:
            source, target = ends
            if target in self._nics:
                self._routes[ends] = self._route_to_nic(source, target)
            elif source in self._nics:
                self._routes[ends] = self._from_nic(source, target)
            else:
                self._routes[ends] = self._route_between_gpus(source, target)
        return self._routes[ends]

    def distance(self, source: str, target: str) -> int:
        """Return how far a NIC is from a GPU, or a GPU from a NIC, as an index of `KINDS`.

        DIS where no link leads there: in an NVLink domain to the NICs of other nodes.
        """
        return KINDS.index(self[source, target].kind) if target in self._search_from(source) else _APART

    def from_host(self, gpu: str) -> tuple[Link, ...]:
        """Return the links from the host memory that is nearest to `gpu` into it.

        Raises:
            TopologyError: a GPU that hangs under no socket.
        """
        socket = self.socket(gpu)
        if socket is None:
            place = f"{self._template.name}: {gpu}"
            raise TopologyError("hangs under no socket", place=place, remedy="list it under `pcie`")
        return self._direct(socket, gpu).links

    def socket(self, device: str) -> str | None:
        """Return the socket that `device` hangs under; None where it hangs under none."""
        kind = None
        while device in self._parents:
            link = self._parents[device]
            device, kind = link.target, link.target_kind
        return device if kind == VertexKind.CPU else None

    def _route_between_gpus(self, source: str, target: str) -> Route:
        direct = self._direct(source, target)
        if KINDS.index(direct.kind) > KINDS.index(self._reach):
            direct = self._route_staged(source, target, self.socket(source)) or direct
        intel = self._template.cpu.vendor == "intel" and self._template.cpu.arch == "x86_64"
        return replace(direct, pcie_overhead=INTEL_P2P_OVERHEAD) if intel and direct.kind == "PHB" else direct

    def _from_nic(self, nic: str, gpu: str) -> Route:
        direct = self._direct(nic, gpu)
        return direct if self._is_direct(nic, direct) else self._route_staged(nic, gpu, self.socket(gpu)) or direct

    def _route_to_nic(self, gpu: str, nic: str) -> Route:
        direct = self._direct(gpu, nic)
        if self._is_direct(nic, direct):
            return direct
        if self._pxn and (through := self._find_near(gpu, nic)) is not None:
            first, second = self._direct(gpu, through), self._direct(through, nic)
            return Route(gpu, nic, first.links + second.links, "PXN")
        return self._route_staged(gpu, nic, self.socket(gpu)) or direct

    def _find_near(self, gpu: str, nic: str) -> str | None:
        """Return the first GPU that reaches `nic` directly, and `gpu` by NVLink."""
        if nic not in self._near_peers:
            peers = [gpu.name for gpu in self._template.gpus]
            linked = [peer for peer in peers if nic in self._search_from(peer)]
            self._near_peers[nic] = [peer for peer in linked if self._is_direct(nic, self._direct(peer, nic))]
        near = (peer for peer in self._near_peers[nic] if peer != gpu)
        return next((peer for peer in near if self._direct(gpu, peer).kind == "NVL"), None)

    def _is_direct(self, nic: str, route: Route) -> bool:
        allowed = self._nics[nic].gpudirect if self._gpudirect is None else self._gpudirect
        near = KINDS.index(route.kind) <= KINDS.index(self._nics[nic].gdr_level)
        return route.kind == "LOC" or (allowed and near)

    def _direct(self, source: str, target: str) -> Route:
        links = self._search_from(source).get(target)
        if links is None:
            raise TopologyError(f"{self._template.name}: {source} cannot reach {target}", remedy="link the two")
        return Route(source, target, links, _kind(links))

    def _search_from(self, source: str) -> dict[str, tuple[Link, ...]]:
        if source not in self._nearest:
            self._nearest[source] = self._search(source)
        return self._nearest[source]

    def _route_staged(self, source: str, target: str, socket: str | None) -> Route | None:
        if socket is None:
            return None
        links = self._direct(source, socket).links + self._direct(socket, target).links
        return Route(source, target, links, farther(_kind(links), "PHB"), through_host=True, shared=self._shared)

    def _search(self, source: str) -> dict[str, tuple[Link, ...]]:
        # Breadth first, one layer of links at a time: a vertex keeps the widest of the ways of the fewest links, as
        # NCCL's search does. Of ways as wide as each other the one that is found first stays.
        routes: dict[str, tuple[Link, ...]] = {source: ()}
        widths = {source: float("inf")}
        frontier = [source]
        while frontier:
            layer: dict[str, tuple[Link, ...]] = {}
            for vertex in frontier:
                for link in self._out.get(vertex, ()):
                    if link.target in routes:
                        continue
                    width = min(widths[vertex], link.bandwidth)
                    known = link.target in layer and widths[link.target] >= width
                    if not known and _may_pass(routes[vertex], link):
                        layer[link.target] = (*routes[vertex], link)
                        widths[link.target] = width
            routes |= layer
            frontier = list(layer)
        return routes


@lru_cache(maxsize=256)
def find_paths(template: NodeTemplate, *, pxn: bool = True, gpudirect: bool | None = None) -> Paths:
    """Return the routes of `template`, found once for equal templates."""
    return Paths(template, pxn=pxn, gpudirect=gpudirect)


def _find_shared(template: NodeTemplate, parents: Mapping[str, Link]) -> frozenset[str]:
    """Return the PCIe switches right below a socket that have several GPUs of `template` below them."""
    counted: Counter[str] = Counter()
    for gpu in template.gpus:
        device = gpu.name
        while device in parents and parents[device].target_kind != VertexKind.CPU:
            device = parents[device].target
        counted[device] += 1
    return frozenset(device for device, count in counted.items() if count > 1)


def _may_pass(before: tuple[Link, ...], link: Link) -> bool:
    if link.target_kind == VertexKind.NETWORK or link.source_kind == VertexKind.NIC:
        return not before and link.target_kind != VertexKind.NETWORK
    if link.source_kind == VertexKind.GPU and before:
        one_nvlink = len(before) == 1 and before[0].kind in GPU_LINKS and before[0].source_kind == VertexKind.GPU
        return one_nvlink and link.kind in GPU_LINKS and link.target_kind == VertexKind.GPU
    return True


def _kind(links: tuple[Link, ...]) -> str:
    kinds = {link.kind for link in links}
    if "socket" in kinds:
        return "SYS"
    if "host_bridge" in kinds:
        return "PHB"
    if "pcie" in kinds:
        into = {link.target for link in links if link.target_kind == VertexKind.PCIE}
        switches = into | {link.source for link in links if link.source_kind == VertexKind.PCIE}
        return "PXB" if len(switches) > 1 else "PIX"
    if kinds & set(GPU_LINKS):
        return "NVB" if len(links) > 1 and links[0].target_kind == VertexKind.GPU else "NVL"
    return "LOC"


def _peer_to_peer_reach(template: NodeTemplate) -> str:
    if template.peer_to_peer is not None:
        return template.peer_to_peer
    model = gpu_facts(template.gpus[0].model)
    if model is not None and not model.peer_to_peer:
        return "NVB"
    return "SYS" if template.cpu.vendor == "amd" and len(template.gpus) <= 2 else "PXB"
