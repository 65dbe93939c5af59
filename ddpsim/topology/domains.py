"""NVLink domains: nodes whose GPUs meet over NVLink, which NCCL takes as one node.

Source: NCCL 2.30 `src/mnnvl.cc` (ranks of one fabric cluster and clique are a clique), `src/init.cc` and `graph/xml.cc`
(the topologies of a clique's nodes are fused into one before channels are searched, so that `nNodes` counts cliques).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ddpsim.common.errors import TopologyError
from ddpsim.topology.bounds import MOST_GPUS
from ddpsim.topology.declared import Cluster, NodeGroup, rejoin
from ddpsim.topology.node import Cpu, Link, NodeTemplate, Vertex, VertexKind
from ddpsim.topology.placement import NodeClass, Placement

_SHARED = (VertexKind.NETWORK, VertexKind.NVSWITCH)
"""What the nodes of a domain have in common."""

MNNVL_FROM = 2021
"""The first release of NCCL that searches a domain as one node, and reduces in its switches (ROCm/rccl#1315).

2.20 reached GPUs of other nodes over NVLink too (NVIDIA/nccl#1159), by each node's own channels: not modelled.
"""


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Numbers the devices of a domain: each node's after those of the node before."""

    counts: dict[VertexKind, int]

    @classmethod
    def of(cls, template: NodeTemplate) -> _Numbered:
        counts: dict[VertexKind, int] = {}
        for link in template.links:
            for vertex in link.ends():
                if vertex.kind not in _SHARED:
                    counts[vertex.kind] = max(counts.get(vertex.kind, 0), _number(vertex) + 1)
        return cls(counts)

    def move(self, vertex: Vertex, position: int) -> Vertex:
        """Return a vertex of a node's template as the one of the node at `position`."""
        if vertex.kind in _SHARED:
            return vertex
        return Vertex.numbered(vertex.kind, position * self.counts[vertex.kind] + _number(vertex))


def group_by_domain(placement: Placement) -> Placement:
    """Return the placement as NCCL sees it: the nodes of an NVLink domain as one node, ranks in the same order.

    The placement itself without a domain, on one node, or where the domain's NVLinks are not used between nodes.
    """
    domain = placement.topology.nvlink_domain
    if domain is None or not domain.mnnvl or placement.nodes == 1:
        return placement
    return _fuse(placement, domain.share(placement.nodes))


@lru_cache(maxsize=64)
def _fuse(placement: Placement, size: int) -> Placement:
    classes: dict[tuple[NodeTemplate, ...], list[int]] = {}
    for number in range(placement.nodes // size):
        nodes = range(number * size, (number + 1) * size)
        classes.setdefault(tuple(placement.class_of(node).template for node in nodes), []).append(number)
    first = placement.topology.groups[0].template
    gpus, nics = len(first.gpus), len(first.nics)
    visible = placement.topology.visible_devices
    templates = {nodes: fuse_template(nodes) for nodes in classes}
    topology = replace(
        placement.topology,
        groups=tuple(NodeGroup(templates[nodes], len(numbers)) for nodes, numbers in classes.items()),
        fabric=replace(placement.topology.fabric, fused=(size, nics)),
        degraded=(),
        gpus_per_node=None,
        visible_devices=visible and tuple(node * gpus + number for node in range(size) for number in visible),
        nvlink_domain=None,
    )
    fused = tuple(NodeClass(templates[nodes], tuple(numbers)) for nodes, numbers in classes.items())
    return Placement(topology, placement.nodes // size, size * placement.gpus_per_node, fused, placement.trunks)


def fuse_template(nodes: tuple[NodeTemplate, ...]) -> NodeTemplate:
    """Return the node that NCCL makes of a domain's: all their devices, around one switch."""
    first = nodes[0]
    numbered = _Numbered.of(first)

    def moved(link: Link, position: int) -> Link:
        source, target = (numbered.move(vertex, position) for vertex in link.ends())
        return rejoin(link, source, target)

    def named(vertex: Vertex, position: int) -> str:
        return numbered.move(vertex, position).name

    every = list(enumerate(nodes))
    cpu = first.cpu
    return NodeTemplate(
        name=f"{first.name}, {len(nodes)} nodes of an NVLink domain",
        gpus=tuple(replace(gpu, name=named(gpu.vertex, n)) for n, node in every for gpu in node.gpus),
        nics=tuple(replace(nic, name=named(nic.vertex, n)) for n, node in every for nic in node.nics),
        cpu=Cpu(cpu.sockets * len(nodes), cpu.arch, cpu.vendor, cpu.model),
        links=tuple(moved(link, n) for n, node in every for link in node.links),
        peer_to_peer=first.peer_to_peer,
        workload=first.workload,
    )


def check_domain(topology: Cluster, place: str) -> None:
    """Raise `TopologyError` unless the cluster can have its NVLink domain."""
    domain = topology.nvlink_domain
    if domain is None:
        return
    where = f"{place}: nvlink_domain"
    template = topology.groups[0].template
    if len(topology.groups) > 1:
        raise TopologyError("nodes of a domain are alike", place=where, remedy="write one `node`, not `templates`")
    switched = {link.source for link in template.links if link.target_kind == VertexKind.NVSWITCH}
    if not all(gpu.name in switched for gpu in template.gpus):
        raise TopologyError(f"{template.name} has no NVSwitch", place=where, remedy="give its node `nvswitch`")
    if domain.nodes > topology.nodes:
        what = f"a domain of {domain.nodes} nodes is larger than the cluster, which has {topology.nodes}"
        raise TopologyError(what, place=f"{where}.nodes", remedy=f"write `nodes: {domain.nodes}` or a smaller domain")
    if domain.nodes * len(template.gpus) > MOST_GPUS:
        what = f"a domain of {domain.nodes} nodes has {domain.nodes * len(template.gpus)} GPUs, at most {MOST_GPUS} fit"
        raise TopologyError(what, place=f"{where}.nodes", remedy=f"write at most {MOST_GPUS // len(template.gpus)}")
    if domain.partition is not None and domain.partition > domain.nodes:
        what = f"a partition of {domain.partition} nodes in a domain of {domain.nodes}"
        raise TopologyError(what, place=f"{where}.partition", remedy=f"write at most {domain.nodes}")
    if topology.gpus_per_node not in (None, len(template.gpus)):
        what = f"{topology.gpus_per_node} ranks a node are part of a tray, which has {len(template.gpus)} GPUs"
        raise TopologyError(what, place=f"{place}: gpus_per_node", remedy="leave it out, and ask for fewer `nodes`")


def _number(vertex: Vertex) -> int:
    return int(vertex.name.removeprefix(vertex.kind) or 0)
