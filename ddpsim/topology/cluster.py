"""A cluster: how many of each node template, and the fabric between their NICs.

Nothing here is expanded by node: a cluster of thousands is a few templates, counts and exceptions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddpsim.errors import TopologyError
from ddpsim.topology.node import NETWORK, Degradation, Link, NodeTemplate

if TYPE_CHECKING:
    import networkx as nx

    from ddpsim.topology.placement import Placement


@dataclass(frozen=True, slots=True)
class Fabric:
    """What joins the NICs.

    Attributes:
        kind: `none` (one node), `flat` (one switch that never blocks), `two-level` (leaf switches of `nodes_per_leaf`
            nodes under a spine), `rail` (a leaf switch for each NIC position, `rail0` joins every node's nic0).
        nodes_per_leaf: nodes under one leaf switch; None puts all under one (of each rail).
        trunk_bandwidth: bytes per second from a leaf to the spine and from the spine to a leaf, each; None derives it
            from `oversubscription`.
        oversubscription: bandwidth of a leaf's NICs over that of its trunk; 1 never blocks.
        trunk_latency_s: one-way delay of a trunk.
    """

    kind: str = "none"
    nodes_per_leaf: int | None = None
    trunk_bandwidth: float | None = None
    oversubscription: float = 1.0
    trunk_latency_s: float = 0.0

    def leaf(self, node: int, nic: int) -> str:
        """Return the switch that port `nic` of `node` is plugged into."""
        block = 0 if self.nodes_per_leaf is None else node // self.nodes_per_leaf
        if self.kind == "rail":
            return f"rail{nic}" if self.nodes_per_leaf is None else f"rail{nic}.{block}"
        return f"leaf{block}" if self.kind == "two-level" else "leaf0"


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """`count` nodes of one template, numbered one after the other."""

    template: NodeTemplate
    count: int


@dataclass(frozen=True, slots=True)
class DegradedLink:
    """A link of one node, of every node, or of the fabric, that is not what its template says.

    Attributes:
        link: `nic0-network` for both directions, `nic0>network` for one; in the fabric `leaf1-spine0`.
        node: which node; None for every node, or where the link is the fabric's.
    """

    link: str
    node: int | None
    change: Degradation

    @property
    def in_fabric(self) -> bool:
        """Whether the link is a trunk of the fabric."""
        return "spine" in self.link


@dataclass(frozen=True, slots=True)
class Topology:
    """A cluster as data.

    Attributes:
        groups: node templates in node order, each with its count.
        gpus_per_node: ranks of a node where nothing else is asked for; None for one on each GPU.
        visible_devices: numbers of the GPUs of a node that ranks run on, in rank order, as CUDA_VISIBLE_DEVICES lists
            them; None for all in their own order.
        confidence: how sure the figures are, in words.
    """

    name: str
    groups: tuple[NodeGroup, ...]
    fabric: Fabric = field(default_factory=Fabric)
    degraded: tuple[DegradedLink, ...] = ()
    sources: tuple[str, ...] = ()
    confidence: str = ""
    gpus_per_node: int | None = None
    visible_devices: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        shown = [f"{group.count} x {group.template.name}" for group in self.groups[:3]]
        more = [f"{len(self.groups) - 3} more templates"] if len(self.groups) > 3 else []
        return f"<Topology: {self.name}, {', '.join([*shown, *more])}>"

    @property
    def nodes(self) -> int:
        """Nodes declared; the default of `place`."""
        return sum(group.count for group in self.groups)

    @property
    def elastic(self) -> bool:
        """Whether more nodes than declared may be asked for: one template, and NICs to join the nodes."""
        return len(self.groups) == 1 and bool(self.groups[0].template.nics) and self.fabric.kind != "none"

    @property
    def compute_device(self) -> str:
        """The model of the first node's GPU, `cpu` on a node without GPUs."""
        return self.groups[0].template.gpus[0].model

    @property
    def backend(self) -> str:
        """The backend of process groups on it where none is asked for: `nccl`, `gloo` on nodes without GPUs."""
        return "gloo" if self.compute_device == "cpu" else "nccl"

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits of the hardware: names, sources and confidence do not change it."""
        nodes = [
            (replace(group.template, name="", extras=()), group.count, *group.template.stated) for group in self.groups
        ]
        seen = () if self.visible_devices is None else (self.visible_devices,)
        return hashlib.sha256(repr((nodes, self.fabric, self.degraded, *seen)).encode()).hexdigest()[:16]

    def gpus_of(self, template: NodeTemplate) -> tuple[str, ...]:
        """Return the names of the GPUs that ranks may run on, in rank order."""
        names = tuple(gpu.name for gpu in template.gpus)
        return names if self.visible_devices is None else tuple(names[number] for number in self.visible_devices)

    def template_of(self, node: int) -> NodeTemplate:
        """Return the template of `node` as declared, before degraded links."""
        for group in self.groups[:-1]:
            if node < group.count:
                return group.template
            node -= group.count
        return self.groups[-1].template

    def place(self, nodes: int | None = None, gpus_per_node: int | None = None) -> Placement:
        """Put one rank on each of the first `gpus_per_node` visible GPUs of the first `nodes` nodes.

        Args:
            nodes: the declared number where None.
            gpus_per_node: the declared number where None, else all visible GPUs of a node; of the node with fewest,
                where templates differ.

        Raises:
            TopologyError: more nodes or GPUs than there are, or several nodes without a network between them.
        """
        from ddpsim.topology.placement import place

        return place(self, nodes, gpus_per_node)

    def trunks(self, nodes: int) -> dict[str, Link]:
        """Return the links between leaf and spine switches by name, degraded ones as they are."""
        if self.fabric.kind in ("none", "flat"):
            return {}
        ports: dict[str, float] = {}
        for node in range(nodes):
            for index, nic in enumerate(self.template_of(node).nics):
                leaf = self.fabric.leaf(node, index)
                ports[leaf] = ports.get(leaf, 0.0) + nic.bandwidth
        if len(ports) < 2:
            return {}
        links = {link.name: link for leaf, total in ports.items() for link in self._trunk(leaf, total)}
        for entry in self.degraded:
            for name in _directions(entry.link) if entry.in_fabric else ():
                if name in links:
                    links[name] = entry.change.applied(links[name])
        return links

    def graph(self, nodes: int | None = None) -> nx.DiGraph:
        """Return every node and the fabric as one networkx graph; vertices `node3/gpu0`, `leaf0`, `spine0`.

        For drawing and inspection: its size grows with the nodes, the simulation does not use it.
        """
        import networkx as nx

        graph = nx.DiGraph()
        for link in self._expanded(self.nodes if nodes is None else nodes):
            graph.add_edge(link.source, link.target, link=link)
        for vertex in graph:
            graph.nodes[vertex]["kind"] = vertex.rpartition("/")[2].rstrip("0123456789.")
        return graph

    def _expanded(self, nodes: int) -> Iterator[Link]:
        placement = self.place(nodes)
        for node in range(nodes):
            template = placement.class_of(node).template
            ports = {nic.name: self.fabric.leaf(node, index) for index, nic in enumerate(template.nics)}
            for link in template.links:
                if NETWORK not in (link.source, link.target):
                    yield _renamed(link, f"node{node}/{link.source}", f"node{node}/{link.target}")
                elif self.fabric.kind != "none":
                    yield port_link(link, node, ports)
        yield from self.trunks(nodes).values()

    def _trunk(self, leaf: str, ports: float) -> tuple[Link, Link]:
        bandwidth = self.fabric.trunk_bandwidth or ports / self.fabric.oversubscription
        up, down = f"{leaf}>spine0", f"spine0>{leaf}"
        latency_s = self.fabric.trunk_latency_s
        return (
            Link(up, leaf, "spine0", "network", bandwidth, latency_s),
            Link(down, "spine0", leaf, "network", bandwidth, latency_s),
        )


def port_link(link: Link, node: int, leaves: dict[str, str]) -> Link:
    """Return the template's link between a NIC and `network` as the link of `node` to the NIC's leaf switch."""
    if link.target == NETWORK:
        return _renamed(link, f"node{node}/{link.source}", leaves[link.source])
    return _renamed(link, leaves[link.target], f"node{node}/{link.target}")


def _renamed(link: Link, source: str, target: str) -> Link:
    return replace(link, name=f"{source}>{target}", source=source, target=target)


def _directions(name: str) -> tuple[str, ...]:
    first, dash, second = name.partition("-")
    return (f"{first}>{second}", f"{second}>{first}") if dash else (name,)


def require_network(topology: Topology, nodes: int) -> None:
    """Raise `TopologyError` where `nodes` nodes cannot talk to each other."""
    for node in {0, nodes - 1}:
        template = topology.template_of(node)
        if not template.nics or topology.fabric.kind == "none":
            raise TopologyError(
                f"{nodes} nodes of {topology.name}, but {template.name} has no network",
                place="nodes",
                remedy="give its node `nics` and the file a `fabric`, or use one node",
            )
