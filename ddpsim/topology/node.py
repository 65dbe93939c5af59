"""One node: its GPUs, NICs and processors, and the directed links between them.

Vertices are named `gpu0`, `nic0`, `cpu0` (a socket with its host bridge), `pcie0` (a switch), `nvswitch0`,
`adapter0` (a card with several ports), and on a node without GPUs `process0` and the kernel's two ends, `host_out` and
`host_in`. `network` stands for whatever the NICs are plugged into.

Start at `NodeTemplate` and `Link`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ddpsim.common.errors import TopologyError, UnknownNameError

if TYPE_CHECKING:
    import networkx as nx


class VertexKind(StrEnum):
    """What a vertex is; its name is the kind and a number, or the kind alone where there is one."""

    GPU = "gpu"
    PROCESS = "process"
    """It computes on the CPU of a node without GPUs."""
    NIC = "nic"
    ADAPTER = "adapter"
    """A card with several ports, each a NIC."""
    PCIE = "pcie"
    """A PCIe switch."""
    CPU = "cpu"
    """A socket with its host bridge."""
    NVSWITCH = "nvswitch"
    HOST_OUT = "host_out"
    HOST_IN = "host_in"
    """The kernel's two ends, of a node without GPUs."""
    NETWORK = "network"
    """Whatever the NICs of a node are plugged into."""
    LEAF = "leaf"
    RAIL = "rail"
    """The leaf switch of one NIC position."""
    SPINE = "spine"


MESHED = 8
"""GPUs of a board on which xGMI joins every two."""


@dataclass(frozen=True, slots=True)
class Vertex:
    """A device or switch, known by name and kind.

    Attributes:
        name: `gpu0`, `nvswitch0`, `host_out`, `rail1.0`.
    """

    name: str
    kind: VertexKind

    @classmethod
    def numbered(cls, kind: VertexKind, number: int) -> Vertex:
        """Return the vertex `number` of its kind."""
        return cls(f"{kind}{number}", kind)


HOST_OUT, HOST_IN = Vertex("host_out", VertexKind.HOST_OUT), Vertex("host_in", VertexKind.HOST_IN)
OUTSIDE = Vertex("network", VertexKind.NETWORK)
SPINE = Vertex("spine0", VertexKind.SPINE)


GPU_LINKS = ("nvlink", "xgmi")
"""Kinds of links from GPU to GPU, or to a switch between GPUs, by vendor; for both libraries they are one kind."""

NETWORK = OUTSIDE.name
"""The vertex outside a node template that its NICs are plugged into."""


@dataclass(frozen=True, slots=True)
class Link:
    """A directed link; parallel NVLinks between a pair are one `Link`.

    Attributes:
        name: `source>target`.
        kind: nvlink, xgmi (AMD's), pcie (below a switch), host_bridge (into a socket), socket (between sockets), nic (a
            NIC's port), network (between switches), loopback (between processes of one machine).
        bandwidth: bytes per second in this direction, all parallel links together, effective as NCCL counts it.
        latency_s: one-way delay beyond what a transport's constants contain.
        count: parallel links.
        source_kind, target_kind: what its two ends are.
    """

    name: str
    source: str
    target: str
    kind: str
    bandwidth: float
    latency_s: float = 0.0
    count: int = 1
    # Not in the representation, on which the fingerprints of calibrations rest; names tell links apart.
    source_kind: VertexKind = field(kw_only=True, repr=False, compare=False)
    target_kind: VertexKind = field(kw_only=True, repr=False, compare=False)

    @classmethod
    def between(
        cls, source: Vertex, target: Vertex, kind: str, bandwidth: float, latency_s: float = 0.0, count: int = 1
    ) -> Link:
        """Return the link from `source` to `target`, named after them."""
        ends = {"source_kind": source.kind, "target_kind": target.kind}
        name = f"{source.name}>{target.name}"
        return cls(name, source.name, target.name, kind, bandwidth, latency_s, count, **ends)

    def at(self, kind: VertexKind) -> bool:
        """Return whether one of its ends is of `kind`."""
        return kind in (self.source_kind, self.target_kind)

    def ends(self) -> tuple[Vertex, Vertex]:
        """Return its source and target."""
        return Vertex(self.source, self.source_kind), Vertex(self.target, self.target_kind)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or on a node without GPUs a process that computes on the CPU.

    Attributes:
        name: `gpu0`, or `process0`.
        model: `V100`, ..., or `cpu`: the device whose pace it has.
        sm: compute capability without its point; 0 for a processor.
        kind: `GPU` or `PROCESS`.
    """

    name: str
    model: str
    sm: int
    # Not in the representation, on which the fingerprints of calibrations rest.
    kind: VertexKind = field(default=VertexKind.GPU, repr=False, compare=False)

    @property
    def vertex(self) -> Vertex:
        """Where it stands in the node."""
        return Vertex(self.name, self.kind)


GDR_LEVEL: Final = "PXB"
"""NCCL's own `NCCL_NET_GDR_LEVEL`: a card accesses the memory of GPUs below PCIe switches that are its own too."""


@dataclass(frozen=True, slots=True)
class Nic:
    """One port of a network card.

    Attributes:
        kind: of `ddpsim.topology.hardware.NIC_KINDS`.
        bandwidth: bytes per second, one direction.
        latency_s: what NCCL adds to a network hop for it (from its plugin or XML); no part of a link's delay.
        gpudirect: whether a GPU's memory may be read and written by it directly.
        in_order: whether it writes memory in the order it was sent, which LL and LL128 rest on.
        gdr_level: the farthest path over which it accesses a GPU's memory, in NCCL's words (`NCCL_NET_GDR_LEVEL`).
    """

    name: str
    kind: str
    bandwidth: float
    latency_s: float = 0.0
    gpudirect: bool = False
    in_order: bool = True
    # Not in the representation, on which the fingerprints of calibrations rest: `NodeTemplate.stated` has it.
    gdr_level: str = field(default=GDR_LEVEL, repr=False)

    @property
    def vertex(self) -> Vertex:
        """Where it stands in the node."""
        return Vertex(self.name, VertexKind.NIC)


@dataclass(frozen=True, slots=True)
class Cpu:
    """These are the node's processors, which are all alike.

    Attributes:
        unknown: what joins several sockets is neither stated nor in the table of processors.
    """

    sockets: int = 1
    arch: str = "x86_64"
    vendor: str = "intel"
    model: str = "skylake"
    # Not in the representation, on which the fingerprints of calibrations rest.
    unknown: bool = field(default=False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """A kind of node; equal templates are one kind.

    Attributes:
        peer_to_peer: farthest path over which GPUs access each other's memory, in NCCL's words (`NCCL_P2P_LEVEL`): LOC
            (never), NVL, PIX, PXB, PHB, SYS; None for NCCL's own rule.
        workload: name or path of the workload of its GPUs; None for the one asked for.
        rings: GPU orders that are known, one a channel, between two NICs where they leave the node; taken instead of a
            search.
        trees: the same of trees' chains, from the GPU that talks to other nodes; those of the rings where empty.
        ring_bandwidth: bytes per second NCCL counts each of `rings` as; None for their even share of the links.
        tree_bandwidth: the same of one of `trees` inside the node; None for what fits beside the NIC's.
        extras: attributes an importer met and does not use.
    """

    name: str
    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    cpu: Cpu
    links: tuple[Link, ...]
    peer_to_peer: str | None = None
    workload: str | None = None
    rings: tuple[tuple[str, ...], ...] = ()
    # Not in the representation, on which the fingerprints of calibrations rest.
    trees: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    ring_bandwidth: float | None = field(default=None, repr=False)
    tree_bandwidth: float | None = field(default=None, repr=False)
    extras: tuple[tuple[str, str], ...] = ()

    @property
    def stated(self) -> tuple[object, ...]:
        """What is stated of NCCL's graphs beyond `rings`, and how far GPUDirect reaches; empty where nothing is."""
        stated = (self.trees, self.ring_bandwidth, self.tree_bandwidth)
        levels = tuple(nic.gdr_level for nic in self.nics)
        return (*(stated if any(stated) else ()), *(levels if {*levels} - {GDR_LEVEL} else ()))

    def nic(self, name: str) -> Nic:
        """Return the NIC `name`."""
        return {nic.name: nic for nic in self.nics}[name]

    def select_gpus(self, gpus: Iterable[str]) -> NodeTemplate:
        """Return the template without its other GPUs and their links, as NCCL sees it when they take no part."""
        names = set(gpus)
        others = {gpu.name for gpu in self.gpus} - names
        if not others:
            return self
        links = tuple(link for link in self.links if link.source not in others and link.target not in others)
        return replace(self, gpus=tuple(gpu for gpu in self.gpus if gpu.name in names), links=links)

    def parents(self) -> dict[str, Link]:
        """Return the link from each device or switch towards its host bridge, by source."""
        return {link.source: link for link in self.links if link.kind in ("pcie", "host_bridge") and _is_upward(link)}

    def degrade(self, changes: Mapping[str, Degradation]) -> NodeTemplate:
        """Return the template with the links named in `changes` altered.

        Args:
            changes: by `a>b` for one direction or `a-b` for both.

        Raises:
            UnknownNameError: where the node has no such link.
        """
        links = {link.name: link for link in self.links}
        for name, change in changes.items():
            for directed in link_names(name, links):
                links[directed] = change.apply(links[directed])
        return replace(self, links=tuple(links.values()))

    def graph(self) -> nx.DiGraph:
        """Return the links as a networkx graph, each edge with attribute `link`, each vertex with attribute `kind`."""
        import networkx as nx

        graph = nx.DiGraph()
        for link in self.links:
            graph.add_edge(link.source, link.target, link=link)
            for vertex in link.ends():
                graph.nodes[vertex.name]["kind"] = vertex.kind
        return graph


@dataclass(frozen=True, slots=True)
class Degradation:
    """How a link differs from what its template says; None keeps the template's figure."""

    bandwidth: float | None = None
    latency_s: float | None = None

    def apply(self, link: Link) -> Link:
        """Return `link` with this change."""
        return replace(
            link,
            bandwidth=link.bandwidth if self.bandwidth is None else self.bandwidth,
            latency_s=link.latency_s if self.latency_s is None else self.latency_s,
        )


def make_both_ways(
    first: Vertex, second: Vertex, kind: str, bandwidth: float, latency_s: float = 0.0, count: int = 1
) -> tuple[Link, Link]:
    """Return the link between two vertices in both directions."""
    return (
        Link.between(first, second, kind, bandwidth, latency_s, count),
        Link.between(second, first, kind, bandwidth, latency_s, count),
    )


def link_names(name: str, known: Iterable[str], place: str | None = None) -> list[str]:
    """Return the directed links that `name` means: `a>b` itself, `a-b` both directions.

    Raises:
        UnknownNameError: where there is no such link.
    """
    names = set(known)
    first, dash, second = name.partition("-")
    wanted = [f"{first}>{second}", f"{second}>{first}"] if dash else [name]
    if not set(wanted) <= names:
        undirected = {"-".join(link.split(">")) for link in names}
        raise UnknownNameError.among("link", name, undirected | (names if ">" in name else set()), place=place)
    return wanted


def check_reachable(links: Iterable[Link], gpus: Iterable[Gpu], place: str | None = None) -> None:
    """Raise `TopologyError` where a GPU cannot reach another, naming the two."""
    targets: dict[str, list[str]] = {}
    for link in links:
        targets.setdefault(link.source, []).append(link.target)
    names = [gpu.name for gpu in gpus]
    seen, frontier = {names[0]}, [names[0]]
    while frontier:
        for target in targets.get(frontier.pop(), ()):
            if target not in seen and target != NETWORK:
                seen.add(target)
                frontier.append(target)
    for name in names:
        if name not in seen:
            raise TopologyError(
                f"{names[0]} cannot reach {name}",
                place=place,
                remedy=f"put {name} under a PCIe switch or slot, or join the two by NVLink",
            )


def check_ring(stops: Sequence[Vertex], place: str) -> None:
    """Raise `TopologyError` unless `stops` names GPUs once each, between two NICs or between none."""
    kinds = [stop.kind for stop in stops]
    between = len(stops) > 2 and kinds[0] == kinds[-1] == VertexKind.NIC
    gpus = stops[1:-1] if between else stops
    if not gpus or len(set(gpus)) < len(gpus) or any(gpu.kind != VertexKind.GPU for gpu in gpus):
        raise TopologyError(
            f"{[stop.name for stop in stops]} is no ring",
            place=place,
            remedy="name each GPU once, between two NICs or between none",
        )


_DEPTH = {
    VertexKind.GPU: 3,
    VertexKind.NIC: 3,
    VertexKind.ADAPTER: 2,
    VertexKind.PCIE: 1,
    VertexKind.CPU: 0,
}


def _is_upward(link: Link) -> bool:
    source, target = link.source_kind, link.target_kind
    if source == target == VertexKind.PCIE:
        # Switches are numbered from the host bridge on.
        return _number(link.source) > _number(link.target)
    return source in _DEPTH and target in _DEPTH and _DEPTH[source] > _DEPTH[target]


def _number(switch: str) -> int:
    return int(switch.removeprefix(VertexKind.PCIE))


def is_mesh(template: NodeTemplate) -> bool:
    """Return whether a node is eight GPUs of which xGMI joins every two."""
    joined = {(link.source, link.target) for link in template.links if link.kind == "xgmi"}
    return len(template.gpus) == MESHED and len(joined) == MESHED * (MESHED - 1)
