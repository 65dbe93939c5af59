"""What a cluster consists of: how many of each node template, the fabric between their NICs, and the exceptions.

Nothing here is expanded by node: a cluster of thousands is a few templates, counts and exceptions.

Start at `Cluster`, then `Fabric`; `trunks` derives the links between switches.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from ddpsim.common.documents.fields import STATED, WRITTEN, Bandwidth, Bounds, Key, NotInFile, OneOf, Time
from ddpsim.common.errors import TopologyError
from ddpsim.topology.bounds import MOST_NODES
from ddpsim.topology.hardware import gcn_of
from ddpsim.topology.node import SPINE, Degradation, Link, NodeTemplate, Vertex, VertexKind, make_both_ways

_Nodes = Annotated[int, Bounds(ge=1, le=MOST_NODES)]


@dataclass(frozen=True, slots=True)
class SharedFabric:
    """What a job's fabric has of a machine that other jobs are on too.

    Attributes:
        numbers: which node of the machine each node of the job is.
        ports: bytes per second of all NICs under each leaf switch, whoever has them.
    """

    numbers: tuple[int, ...]
    ports: tuple[tuple[str, float], ...]


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
        routing: `adaptive`, or `ecmp` by a hash of each flow; None is what its cards' switches usually do.
        fused: where a node stands for several of an NVLink domain: how many, and the NICs of each.
        shared: where a job has it beside another; None where it is the job's alone.
    """

    EXTRA: ClassVar = "forbid"

    kind: Annotated[str, OneOf(("none", "flat", "two-level", "rail")), STATED] = "none"
    nodes_per_leaf: _Nodes | None = None
    trunk_bandwidth: Annotated[Bandwidth | None, Key(("trunk",))] = None
    oversubscription: Annotated[float, Bounds(gt=0, strict=False, allow_inf_nan=True)] = 1.0
    trunk_latency_s: Annotated[Time, Key(("trunk_delay",))] = 0.0
    # Not in the representation, on which the fingerprints of calibrations rest.
    routing: Annotated[str, OneOf(("adaptive", "ecmp"))] | None = field(default=None, repr=False)
    fused: Annotated[tuple[int, int] | None, NotInFile] = field(default=None, repr=False)
    shared: Annotated[SharedFabric | None, NotInFile] = field(default=None, repr=False)

    def number(self, node: int) -> int:
        """Return which node of the machine `node` of a job is; of several that are one, the first."""
        if self.shared is None:
            return node
        return self.shared.numbers[node * (1 if self.fused is None else self.fused[0])]

    def leaf(self, node: int, nic: int) -> str:
        """Return the switch that port `nic` of `node` is plugged into."""
        if self.fused is not None:
            size, nics = self.fused
            node, nic = node * size + nic // nics, nic % nics
        if self.shared is not None:
            node = self.shared.numbers[node]
        block = 0 if self.nodes_per_leaf is None else node // self.nodes_per_leaf
        if self.kind == "rail":
            return f"rail{nic}" if self.nodes_per_leaf is None else f"rail{nic}.{block}"
        return f"leaf{block}" if self.kind == "two-level" else "leaf0"

    def leaves(self, node: int, template: NodeTemplate) -> dict[str, Vertex]:
        """Return the leaf switch of each NIC of `node`, by the NIC's name."""
        return {nic.name: self.switch(self.leaf(node, index)) for index, nic in enumerate(template.nics)}

    def switch(self, leaf: str) -> Vertex:
        """Return the leaf switch of that name."""
        return Vertex(leaf, VertexKind.RAIL if self.kind == "rail" else VertexKind.LEAF)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """`count` nodes that share one template, numbered one after the other."""

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
        return SPINE.name in re.split("[->]", self.link)


@dataclass(frozen=True, slots=True)
class NvlinkDomain:
    """Nodes one after the other whose GPUs meet over NVLink, as the trays of a rack do.

    Attributes:
        nodes: of a domain.
        partition: nodes of a domain that one job may have (an NVLink partition); None for all.
        mnnvl: whether NCCL uses those NVLinks between nodes (`NCCL_MNNVL_ENABLE`); without, nodes meet over NICs.
    """

    EXTRA: ClassVar = "forbid"

    nodes: _Nodes
    partition: _Nodes | None = None
    mnnvl: Annotated[bool, WRITTEN] = True

    @property
    def most(self) -> int:
        """Nodes of one domain that a job has at most."""
        return self.nodes if self.partition is None else self.partition

    def share(self, nodes: int) -> int:
        """Return how many nodes of each domain a job on `nodes` has: the same of each, of as few as hold them.

        Raises:
            TopologyError: a number that does not spread evenly.
        """
        domains = -(-nodes // self.most)
        if nodes % domains == 0:
            return nodes // domains
        fits = [count for count in (nodes - nodes % domains, nodes + -nodes % domains) if count > 0]
        raise TopologyError(
            f"{nodes} nodes do not spread evenly over {domains} NVLink domains, each of at most {self.most}",
            place="nodes",
            remedy=f"ask for {' or '.join(map(str, fits))}",
        )


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes, and the fabric that joins them, as data.

    Attributes:
        groups: node templates in node order, each with its count.
        gpus_per_node: ranks of a node where nothing else is asked for; None for one on each GPU.
        visible_devices: numbers of the GPUs of a node that ranks run on, in rank order, as CUDA_VISIBLE_DEVICES lists
            them; None for all in their own order.
        nvlink_domain: which nodes NVLink joins; None where it ends at a node.
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
    nvlink_domain: NvlinkDomain | None = None

    def __repr__(self) -> str:
        shown = [f"{group.count} x {group.template.name}" for group in self.groups[:3]]
        more = [f"{len(self.groups) - 3} more templates"] if len(self.groups) > 3 else []
        return f"<{type(self).__name__}: {self.name}, {', '.join([*shown, *more])}>"

    @property
    def nodes(self) -> int:
        """Nodes declared; the default of `Topology.place`."""
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
        """The backend of process groups on it where none is asked for: `nccl`, which on AMD's GPUs is `rccl`.

        On nodes without GPUs `gloo`.
        """
        if self.compute_device == "cpu":
            return "gloo"
        return "rccl" if gcn_of(self.compute_device) else "nccl"

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits of the hardware: names, sources and confidence do not change it."""
        nodes = [
            (replace(group.template, name="", extras=()), group.count, *group.template.stated) for group in self.groups
        ]
        visible = () if self.visible_devices is None else (self.visible_devices,)
        joined = () if self.nvlink_domain is None else (self.nvlink_domain,)
        return hashlib.sha256(repr((nodes, self.fabric, self.degraded, *visible, *joined)).encode()).hexdigest()[:16]

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

    def trunks(self, nodes: int) -> dict[str, Link]:
        """Return the links between leaf and spine switches by name, degraded ones as they are."""
        if self.fabric.kind in ("none", "flat"):
            return {}
        shared = self.fabric.shared
        ports = self.ports(nodes) if shared is None else dict(shared.ports)
        if len(ports) < 2:
            return {}
        links = {link.name: link for leaf, total in ports.items() for link in self._trunk(leaf, total)}
        for entry in self.degraded:
            for name in _directions(entry.link) if entry.in_fabric else ():
                if name in links:
                    links[name] = entry.change.apply(links[name])
        return links

    def ports(self, nodes: int) -> dict[str, float]:
        """Return bytes per second of the NICs of the first `nodes` nodes under each leaf switch."""
        rates: dict[str, float] = {}
        node = 0
        while node < nodes:
            # Nodes under the same switches count at once, as a flat fabric may have 100,000 of one template.
            alike = self._count_alike(node, nodes)
            for index, nic in enumerate(self.template_of(node).nics):
                leaf = self.fabric.leaf(node, index)
                rates[leaf] = rates.get(leaf, 0.0) + alike * nic.bandwidth
            node += alike
        return rates

    def _count_alike(self, node: int, nodes: int) -> int:
        """Return how many of `nodes` nodes from `node` on have its template, and their NICs under its switches."""
        fabric, end = self.fabric, 0
        if fabric.fused is not None or fabric.shared is not None:
            return 1
        for group in self.groups[:-1]:
            end += group.count
            if node < end:
                break
        else:
            end = nodes
        size = fabric.nodes_per_leaf
        return min(end, nodes, nodes if size is None else node - node % size + size) - node

    def _trunk(self, leaf: str, ports: float) -> tuple[Link, Link]:
        bandwidth = self.fabric.trunk_bandwidth or ports / self.fabric.oversubscription
        return make_both_ways(self.fabric.switch(leaf), SPINE, "network", bandwidth, self.fabric.trunk_latency_s)


def port_link(link: Link, node: int, leaves: Mapping[str, Vertex]) -> Link:
    """Return the template's link between a NIC and `network` as the link of `node` to the NIC's leaf switch."""
    source, target = link.ends()
    if target.kind == VertexKind.NETWORK:
        return rejoin(link, move_to_node(source, node), leaves[source.name])
    return rejoin(link, leaves[target.name], move_to_node(target, node))


def move_to_node(vertex: Vertex, node: int) -> Vertex:
    """Return a template's vertex as the one of `node`."""
    return Vertex(f"node{node}/{vertex.name}", vertex.kind)


def rejoin(link: Link, source: Vertex, target: Vertex) -> Link:
    """Return `link` between `source` and `target`."""
    return Link.between(source, target, link.kind, link.bandwidth, link.latency_s, link.count)


def _directions(name: str) -> tuple[str, ...]:
    first, dash, second = name.partition("-")
    return (f"{first}>{second}", f"{second}>{first}") if dash else (name,)
