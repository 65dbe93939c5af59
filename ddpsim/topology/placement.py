"""Ranks on a cluster, with identical nodes as one class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddpsim.common.errors import TopologyError
from ddpsim.topology.bounds import MOST_NODES, MOST_RANKS
from ddpsim.topology.declared import Cluster, port_link
from ddpsim.topology.node import NETWORK, SPINE, Degradation, Link, NodeTemplate


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes that are alike.

    Attributes:
        template: with degraded links as they are, so that everything found on it holds for these nodes.
        node_indices: ascending.
        degraded: the links of these nodes that differ from their declared template.
    """

    template: NodeTemplate
    node_indices: Sequence[int]
    degraded: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Puts one rank on each of the first `gpus_per_node` visible GPUs of the first `nodes` nodes, node by node.

    A rank of several devices has as many consecutive GPUs; the placement is that of one of its devices.

    Attributes:
        gpus_per_node: ranks of a node, each of which has a GPU of this placement.
        trunks: the fabric's links between switches, by name.
        devices: GPUs of a rank.
        device: which of them this placement is of.
    """

    topology: Cluster
    nodes: int
    gpus_per_node: int
    classes: tuple[NodeClass, ...]
    trunks: Mapping[str, Link] = field(compare=False, default_factory=dict)
    devices: int = 1
    device: int = 0

    def __repr__(self) -> str:
        return f"<Placement: {self.world_size} ranks on {self.nodes} x {self.topology.name}>"

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.gpus_per_node

    def rank_of(self, node: int, gpu: int) -> int:
        """Return the rank on GPU `gpu` of `node`."""
        return node * self.gpus_per_node + gpu

    def node_of(self, rank: int) -> tuple[int, int, NodeClass]:
        """Return node, GPU in the node, and class of the node of `rank`."""
        node, gpu = divmod(rank, self.gpus_per_node)
        return node, gpu, self.class_of(node)

    def class_of(self, node: int) -> NodeClass:
        """Return the class of `node`."""
        return next(each for each in self.classes if node in each.node_indices)

    def gpus(self, node_class: NodeClass, device: int | None = None) -> tuple[str, ...]:
        """Return the names of the GPUs that ranks of `node_class` use, in rank order.

        Args:
            device: which of a rank's; None is the one that this placement is of.
        """
        first = self.device if device is None else device
        return self.topology.gpus_of(node_class.template)[first :: self.devices][: self.gpus_per_node]

    @property
    def all_gpus_per_node(self) -> int:
        """How many GPUs of a node ranks have, all their devices counted."""
        return self.gpus_per_node * self.devices

    def of_device(self, device: int) -> Placement:
        """Return the placement of another device of the same ranks."""
        return replace(self, device=device)

    def network_route(self, source: tuple[int, str], target: tuple[int, str]) -> tuple[Link, ...]:
        """Return the links from NIC `source` to NIC `target`, each a (node, NIC name): two ports, trunks between."""
        out, back = self._port(*source, outward=True), self._port(*target, outward=False)
        return (out, *self.trunk_route(source, target), back)

    def trunk_route(self, source: tuple[int, str], target: tuple[int, str]) -> tuple[Link, ...]:
        """Return the links from the leaf switch of NIC `source` to that of `target`; none under one switch."""
        out, back = self._leaf(*source), self._leaf(*target)
        return () if out == back else (self.trunks[f"{out}>{SPINE.name}"], self.trunks[f"{SPINE.name}>{back}"])

    def _leaf(self, node: int, nic: str) -> str:
        nics = self.class_of(node).template.nics
        return self.topology.fabric.leaf(node, next(n for n, each in enumerate(nics) if each.name == nic))

    def _port(self, node: int, nic: str, *, outward: bool) -> Link:
        template = self.class_of(node).template
        name = f"{nic}>{NETWORK}" if outward else f"{NETWORK}>{nic}"
        link = next(link for link in template.links if link.name == name)
        return port_link(link, node, self.topology.fabric.leaves(node, template))


def place(topology: Cluster, nodes: int | None, gpus_per_node: int | None, devices: int = 1) -> Placement:
    """Place ranks of so many GPUs each; see `Topology.place`."""
    nodes = topology.nodes if nodes is None else nodes
    gpus_per_node = topology.gpus_per_node if gpus_per_node is None else gpus_per_node
    for name, count in (("nodes", nodes), ("gpus_per_node", gpus_per_node)):
        if count is not None and not isinstance(count, int):
            raise TopologyError(f"{str(count)[:60]!r} is no count", place=name, remedy="give a whole number")
    if nodes < 1:
        raise TopologyError(f"{nodes} nodes", place="nodes", remedy="ask for at least one")
    # Bounds come first: whatever follows goes through the nodes.
    _check_size(nodes, 1)
    domain = topology.nvlink_domain
    if nodes > 1 and (domain is None or not domain.mnnvl or domain.share(nodes) < nodes):
        _require_network(topology, nodes)
    if nodes > topology.nodes and not topology.elastic:
        raise TopologyError(
            f"{nodes} nodes asked for, {topology.name} has {topology.nodes}",
            place="nodes",
            remedy=f"ask for at most {topology.nodes}, or raise a count under `nodes` in its file",
        )
    classes = _classes(topology, nodes)
    gpus_per_node = _gpus_per_node(topology, classes, gpus_per_node)
    if domain is not None and gpus_per_node < len(topology.gpus_of(classes[0].template)) and nodes > 1:
        raise TopologyError(
            f"{gpus_per_node} of a tray's {len(topology.gpus_of(classes[0].template))} GPUs asked for",
            place="gpus_per_node",
            remedy="a job on several nodes of an NVLink domain has whole trays: ask for fewer `nodes`",
        )
    _check_size(nodes, gpus_per_node)
    if devices > 1:
        _check_devices(topology, nodes, gpus_per_node, devices)
    return Placement(topology, nodes, gpus_per_node // devices, classes, topology.trunks(nodes), devices)


def _check_devices(topology: Cluster, nodes: int, gpus_per_node: int, devices: int) -> None:
    if gpus_per_node % devices:
        what, remedy = f"ranks of {devices} GPUs on nodes of {gpus_per_node}", f"ask for a multiple of {devices}"
        raise TopologyError(what, place="gpus_per_node", remedy=remedy)
    if topology.nvlink_domain is not None and nodes > 1:
        what = f"{nodes} nodes of {topology.name} are an NVLink domain, and a rank's {devices} GPUs are in one node"
        raise TopologyError(what, place="devices", remedy="ask for one node, or for ranks of one device")


def _check_size(nodes: int, gpus_per_node: int) -> None:
    for count, most, what in ((nodes, MOST_NODES, "nodes"), (nodes * gpus_per_node, MOST_RANKS, "ranks")):
        if count > most:
            remedy = f"ask for at most {most} {what}; what changes with more shows in fewer"
            raise TopologyError(f"{count} {what} are more than is simulated", place="nodes", remedy=remedy)


def _gpus_per_node(topology: Cluster, classes: tuple[NodeClass, ...], wanted: int | None) -> int:
    smallest = min((each.template for each in classes), key=lambda template: len(template.gpus))
    available = len(topology.gpus_of(smallest))
    if wanted is None:
        return available
    if wanted < 1:
        raise TopologyError(f"{wanted} GPUs a node", place="gpus_per_node", remedy="ask for at least one")
    if wanted > available:
        kind = "GPUs" if topology.visible_devices is None else "visible GPUs"
        raise TopologyError(
            f"{wanted} ranks a node asked for, {smallest.name} has {available} {kind}",
            place="gpus_per_node",
            remedy=f"ask for at most {available}, or for more nodes",
        )
    return wanted


def _classes(topology: Cluster, nodes: int) -> tuple[NodeClass, ...]:
    if not topology.degraded:
        return tuple(NodeClass(template, indices, ()) for template, indices in _ranges(topology, nodes))
    everywhere = [entry for entry in topology.degraded if not entry.in_fabric and entry.node is None]
    special: dict[int, dict[str, Degradation]] = {}
    for entry in topology.degraded:
        if entry.node is not None and entry.node < nodes:
            special.setdefault(entry.node, {})[entry.link] = entry.change
    by_template: dict[NodeTemplate, list[int]] = {}
    plain: list[NodeClass] = []
    for template, indices in _ranges(topology, nodes):
        # Links that are slow on every node are in the template; nodes with slow links of their own are set apart,
        # those that are slow alike as one class, so that thousands of nodes stay a few templates on which paths and
        # rings are searched once.
        names = {link.name for link in template.links}
        base = template.degrade({e.link: e.change for e in everywhere if e.link.replace("-", ">") in names})
        regular: Sequence[int] = indices
        odd = [node for node in indices if node in special]
        for node in odd:
            by_template.setdefault(base.degrade(special[node]), []).append(node)
        if odd:
            regular = tuple(node for node in indices if node not in special)
        if regular:
            plain.append(NodeClass(base, regular, _find_changed(template, base)))
    odd_classes = (
        NodeClass(template, tuple(indices), _find_changed(topology.template_of(indices[0]), template))
        for template, indices in by_template.items()
    )
    return tuple(sorted((*plain, *odd_classes), key=lambda each: each.node_indices[0]))


def _ranges(topology: Cluster, nodes: int) -> list[tuple[NodeTemplate, range]]:
    ranges, start = [], 0
    for index, group in enumerate(topology.groups):
        end = nodes if index == len(topology.groups) - 1 else min(nodes, start + group.count)
        if end > start:
            ranges.append((group.template, range(start, end)))
        start = max(start, end)
    return ranges


def _find_changed(declared: NodeTemplate, actual: NodeTemplate) -> tuple[Link, ...]:
    before = set(declared.links)
    return tuple(link for link in actual.links if link not in before)


def _require_network(topology: Cluster, nodes: int) -> None:
    """Raise `TopologyError` where `nodes` nodes cannot talk to each other."""
    domain = topology.nvlink_domain
    fewer = "one node" if domain is None or not domain.mnnvl else f"at most {domain.most} nodes"
    for node in {0, nodes - 1}:
        template = topology.template_of(node)
        if not template.nics or topology.fabric.kind == "none":
            raise TopologyError(
                f"{nodes} nodes of {topology.name}, but {template.name} has no network",
                place="nodes",
                remedy=f"give its node `nics` and the file a `fabric`, or use {fewer}",
            )
