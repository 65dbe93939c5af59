"""What NCCL's rings and trees load on a placement, before any constant: links, kinds of hops, the shape it tunes by.

Read `Layout.__init__`: a pattern each of the ring, the trees and the in-switch reduction, and the `Shape` by which NCCL
picks. `find_switch_graph` has the heads of in-switch reductions: the GPUs that take sums from the switch, and how fast.
Source: NCCL 2.30 `src/graph/search.cc`, pattern NVLS: one channel a head, each moving its part over every GPU's link to
the switch, twice over the head's own; the more heads the better. On one node every GPU is a head, between nodes the
GPU nearest to each NIC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain as joined

from ddpsim.collectives.channel_search import speeds_of
from ddpsim.collectives.channels import Channel, Channels, find_channels
from ddpsim.collectives.nccl.loads import (
    DIRECT,
    GROUPS,
    HOST,
    NET,
    NVLINK,
    NVSWITCH,
    XGMI,
    Load,
    Pattern,
    route_group,
    route_loads,
)
from ddpsim.collectives.nccl.shape import InSwitch, Shape
from ddpsim.collectives.nccl.tuning import table, time_us
from ddpsim.collectives.network.fairness import LinkId
from ddpsim.collectives.routes import PlacedLink, PlacementLinks, total_by_key
from ddpsim.collectives.trees import depth_and_fan, double_binary_tree
from ddpsim.common.operation import Operation
from ddpsim.topology.domains import MNNVL_FROM, group_by_domain
from ddpsim.topology.graph import Link, Placement
from ddpsim.topology.hardware import gcn_of, nic_kind
from ddpsim.topology.node import MESHED, NETWORK, NodeTemplate, VertexKind, is_mesh
from ddpsim.topology.paths import KINDS, Paths, Route, find_paths

MOST_HEADS = 32
"""Heads at most, one a channel."""
_SLACK = 1e-9
"""Relative: rounding that does not make a speed too fast."""


@dataclass(frozen=True, slots=True)
class SwitchGraph:
    """Which GPUs are heads of an in-switch reduction, and how fast each head's channel is.

    Attributes:
        heads: the GPUs that take sums, one channel each.
        inside: bytes per second of a channel in the node as NCCL counts it.
        across: the same at the NIC; on one node what NCCL raises it to all the same.
    """

    heads: tuple[str, ...]
    inside: float
    across: float


def find_switch_graph(template: NodeTemplate, gpus: Sequence[str], *, network: bool) -> SwitchGraph | None:
    """Return the heads among `gpus`; None where fewer than two, or where a GPU has no link to a switch."""
    template = template.select_gpus(gpus)
    widths = _switch_widths(template)
    paths = find_paths(template)
    nics = _find_nearest_nics(template, gpus, paths) if network else {}
    heads = (tuple(nics) if network else tuple(gpus))[:MOST_HEADS]
    if len(heads) < 2 or not all(gpu in widths for gpu in gpus):
        return None
    carried = _find_nic_rate(template, nics, paths)
    speeds = speeds_of(min(gpu.sm for gpu in template.gpus), network)
    room = min(widths[gpu] / (len(heads) + (gpu in heads)) for gpu in gpus)
    inside = next((speed for speed in speeds if speed <= min(room, carried) * (1 + _SLACK)), None)
    if inside is None:
        return None
    faster = [speed for speed in reversed(speeds) if inside < speed <= carried * (1 + _SLACK)]
    across = next((speed for speed in faster if speed >= 2 * inside), max(faster, default=inside))
    return SwitchGraph(heads, inside, across)


def _switch_widths(template: NodeTemplate) -> dict[str, float]:
    """Return bytes per second between each GPU and the switches, of the slower direction."""
    widths: dict[str, float] = {}
    for link in template.links:
        gpu = next((end.name for end in link.ends() if end.kind == VertexKind.GPU), None)
        if gpu is not None and link.at(VertexKind.NVSWITCH):
            widths[gpu] = min(widths.get(gpu, link.bandwidth), link.bandwidth)
    return widths


def _find_nearest_nics(template: NodeTemplate, gpus: Sequence[str], paths: Paths) -> dict[str, str]:
    """Return the NIC of each GPU that is the nearest one to some NIC."""
    nics: dict[str, str] = {}
    for nic in template.nics:
        gpu = min(gpus, key=lambda gpu: paths.distance(nic.name, gpu))
        nics.setdefault(gpu, nic.name)
    return nics


def _find_nic_rate(template: NodeTemplate, nics: Mapping[str, str], paths: Paths) -> float:
    """Return bytes per second that all heads can exchange with their NICs at once, each."""
    routes = [route for gpu, nic in nics.items() for route in (paths[nic, gpu], paths[gpu, nic])]
    ports = [(port, 1.0) for nic in nics.values() for port in (f"{NETWORK}>{nic}", f"{nic}>{NETWORK}")]
    loads = total_by_key([*((link.name, load) for route in routes for link, load in route.loads()), *ports])
    capacities = {link.name: link.bandwidth for link in template.links}
    return min((capacities[link] / load for link, load in loads.items()), default=float("inf"))


_LATENCY_KNOWN_FROM = 2013
"""Version from which network plugins tell NCCL their latency (net API v6)."""

_NVLS_FROM, _NVLS_TREE_FROM = 2017, 2018
"""Releases from which NCCL reduces in switches on one node, and between several."""


def join_by_nvlink(placement: Placement, version: int) -> Placement:
    """Return the placement as a release of NCCL sees it: an NVLink domain as one node, from 2.21 on."""
    return group_by_domain(placement) if version >= MNNVL_FROM else placement


class Layout:
    """Channels of a placement as loads on its links.

    Args:
        version: of NCCL, major * 1000 + minor; it says whether nodes of an NVLink domain are one.
        expand: whether every node has links of its own.
        simple_only: whether NCCL_PROTO rules out the other protocols.
    """

    def __init__(self, placement: Placement, version: int, *, expand: bool = False, simple_only: bool = False) -> None:
        placement = join_by_nvlink(placement, version)
        self.placement, self.wiring, self._simple_only = placement, PlacementLinks(placement, expand), simple_only
        self.ranks, self.nodes, self.per_node = placement.world_size, placement.nodes, placement.gpus_per_node
        self._channels = [
            find_channels(each.template, placement.gpus(each), network=placement.nodes > 1)
            for each in placement.classes
        ]
        # A ring over nodes of several kinds needs a channel in each: the fewest decide.
        self.rings = min(len(channels.rings) for channels in self._channels)
        self.carried = _find_most_carried(self.nodes)
        self.depth, self.fan = depth_and_fan(self.nodes)
        self._links: dict[int, dict[tuple[str, str], Link]] = {}
        self.ring = Pattern.of(self._ring_loads())
        self.tree = Pattern.of(self._tree_loads())
        self.chains = tuple(self._chains())
        self.nvls = Pattern.of(self._switch_loads())
        between = (load for load in self.tree.loads if load.group in (NET, HOST))
        self.nvls_tree = Pattern.of([*self.nvls.loads, *between])
        # The slowest of the NICs decides, as of all that ranks do together.
        nics = [nic for each in placement.classes for nic in each.template.nics] if placement.nodes > 1 else []
        self.lone = placement.gpus_per_node == 1 and any(nic_kind(nic.kind).lone for nic in nics)
        self.nic_share = min((share for nic in nics if (share := nic_kind(nic.kind).share)), default=None)
        self.socket_threads = min((threads for nic in nics if (threads := nic_kind(nic.kind).threads)), default=0)
        self.nic_latency_s = max((nic.latency_s for nic in nics), default=0.0)
        routes = (route for found in self._channels for ring in found.rings for route in ring.routes)
        own = XGMI if gcn_of(placement.classes[0].template.gpus[0].model) else NVLINK
        self.hop = max(map(route_group, routes), key=GROUPS.index, default=own)
        self.shape = self._shape(version)
        self.entries = table(self.shape)
        self._believed: dict[int, tuple[float, ...]] = {}

    @property
    def heads(self) -> int:
        """GPUs of a node that take sums of an in-switch reduction, at most: each has a piece of every round."""
        return min(self.per_node, MOST_HEADS)

    @property
    def capacities(self) -> dict[LinkId, float]:
        """Bytes per second of every link that a pattern loads."""
        patterns = (self.ring, self.tree, self.nvls_tree)
        return {load.link.name: load.link.link.bandwidth for pattern in patterns for load in pattern.loads}

    def estimate_us(self, size_bytes: int) -> tuple[float, ...]:
        """Return what NCCL believes an allreduce of `size_bytes` takes by each of `entries`."""
        if size_bytes not in self._believed:
            self._believed[size_bytes] = tuple(time_us(entry, self.shape, size_bytes) for entry in self.entries)
        return self._believed[size_bytes]

    def crossings_of(self, operation: Operation) -> int:
        """Return the hops between nodes, at most, that a chunk meets on an operation's hops around the ring."""
        steps = operation.steps(self.ranks)
        if self.nodes == 1 or operation is Operation.BROADCAST:
            return self.nodes - 1
        # The sum ends on the node of the GPU after which it started.
        return min(self.nodes, steps) if operation.rooted else -(-steps // self.per_node)

    def channels_of(self, node: int) -> Channels:
        """Return the channels of `node`."""
        return next(
            channels
            for channels, each in zip(self._channels, self.placement.classes, strict=True)
            if node in each.node_indices
        )

    def between(
        self, source: int, leaving: Channel, target: int, entering: Channel
    ) -> Iterator[tuple[PlacedLink, str, float]]:
        """Yield the way of a ring from a node's last GPU to the next node's first: links, groups, loads."""
        if leaving.exit is None or leaving.nic_out is None or entering.entry is None or entering.nic_in is None:
            return
        yield from self._list_links_to_nic(source, leaving.exit)
        yield self.wiring.port_out(source, leaving.nic_out), NET, 1.0
        for placed in self._trunks(source, leaving, target, entering):
            yield placed, NET, 1.0
        yield self.wiring.port_in(target, entering.nic_in), NET, 1.0
        yield from self._list_links_to_nic(target, entering.entry)

    def _trunks(self, source: int, leaving: Channel, target: int, entering: Channel) -> tuple[PlacedLink, ...]:
        """Return the fabric's links from a ring's NIC to the next node's.

        Where rings cross over, every other node takes the ring of the opposite direction, so that bytes stay on a rail.
        """
        if leaving.nic_out is None or entering.nic_in is None:
            return ()
        crosses = leaving.nic_in != leaving.nic_out
        return self.wiring.trunks(source, leaving.nic_out, target, leaving.nic_out if crosses else entering.nic_in)

    def inside(self, node: int, route: Route) -> Iterator[tuple[PlacedLink, str, float]]:
        """Yield the links of a route on `node`."""
        for link, group, load in route_loads(route):
            yield self.wiring.at(node, [link])[0], group, load

    def _list_links_to_nic(self, node: int, route: Route) -> Iterator[tuple[PlacedLink, str, float]]:
        """Yield the way between a GPU and a NIC: part of the hop between nodes, unless through host memory."""
        for placed, group, load in self.inside(node, route):
            yield placed, HOST if group == HOST else NET, load

    def _ring_loads(self) -> Iterator[Load]:
        """Yield 2(p-1)/p bytes for each hop of each ring, the rings sharing the message.

        Every node sends to one other and hears from one: its NICs are loaded once, whatever kinds of boundaries it has.
        """
        share = 2 * (self.ranks - 1) / self.ranks
        for node in self.wiring.nodes:
            rings = self.channels_of(node).rings
            for ring in rings:
                for route in ring.routes:
                    for placed, group, load in self.inside(node, route):
                        yield Load(placed, group, load * share / len(rings))
            for ring in rings[: self.rings]:
                for placed, group, load in self._list_links_at_nics(node, ring):
                    yield Load(placed, group, load * share / self.rings)
        for source, target in self.wiring.boundaries:
            leaving, entering = self.channels_of(source).rings, self.channels_of(target).rings
            for out, into in zip(leaving, entering, strict=False):
                for placed in self._trunks(source, out, target, into):
                    yield Load(placed, NET, share / self.rings)

    def _list_links_at_nics(self, node: int, ring: Channel) -> Iterator[tuple[PlacedLink, str, float]]:
        """Yield what a ring loads between a node's GPUs and the network."""
        if ring.exit is None or ring.nic_out is None or ring.entry is None or ring.nic_in is None:
            return
        yield from self._list_links_to_nic(node, ring.exit)
        yield self.wiring.port_out(node, ring.nic_out), NET, 1.0
        yield self.wiring.port_in(node, ring.nic_in), NET, 1.0
        yield from self._list_links_to_nic(node, ring.entry)

    def _tree_loads(self) -> Iterator[Load]:
        """Yield bytes up and down each chain, and at the NIC those of the node that carries most."""
        carried = self.carried
        for node in self.wiring.nodes:
            chains = self.channels_of(node).trees
            template = self.wiring.template(node)
            for chain in chains:
                for route in chain.routes:
                    yield from self._load_both_ways(node, template, route, 1 / len(chains))
                if self.nodes > 1 and chain.entry is not None:
                    for load in self._load_both_ways(node, template, chain.entry, carried / len(chains)):
                        yield replace(load, group=HOST if load.group == HOST else NET)
            for chain in chains[: self.rings]:
                if self.nodes > 1 and chain.nic_in is not None:
                    for port in (self.wiring.port_out(node, chain.nic_in), self.wiring.port_in(node, chain.nic_in)):
                        yield Load(port, NET, carried / self.rings)
        for source, target in _edges(self.nodes) if self.placement.topology.fabric.nodes_per_leaf else ():
            for out, into in zip(self.channels_of(source).trees, self.channels_of(target).trees, strict=False):
                if out.nic_in is not None and into.nic_in is not None:
                    for placed in self.wiring.trunks(source, out.nic_in, target, into.nic_in):
                        yield Load(placed, NET, 1 / self.rings / 2)

    def _chains(self) -> Iterator[tuple[Mapping[str, float], ...]]:
        """Yield for every chain what each of its hops allows while all chains are at the same one.

        Message bytes per second by group of links, as in `Pattern.rates`.
        """
        for node in self.wiring.nodes:
            hops = [list(self._hop_loads(node, hop)) for hop in range(self.per_node - 1)]
            shared = [{(load.link.name, load.group): load for load in Pattern.of(joined(*each)).loads} for each in hops]
            for number in range(len(self.channels_of(node).trees)):
                yield tuple(
                    Pattern.of(together[load.link.name, load.group] for load in each[number]).rates
                    for each, together in zip(hops, shared, strict=True)
                )

    def _hop_loads(self, node: int, hop: int) -> Iterator[list[Load]]:
        """Yield what each chain on `node` loads at one of its hops."""
        trees = self.channels_of(node).trees
        for tree in trees:
            route = self.inside(node, tree.routes[hop])
            yield [Load(placed, group, load / len(trees)) for placed, group, load in route]

    def _load_both_ways(self, node: int, template: NodeTemplate, route: Route, share: float) -> Iterator[Load]:
        reverse = self._index_by_ends(template)
        for link, group, load in route_loads(route):
            for each in (link, reverse.get((link.target, link.source))):
                if each is not None:
                    yield Load(self.wiring.at(node, [each])[0], group, load * share)

    def _index_by_ends(self, template: NodeTemplate) -> Mapping[tuple[str, str], Link]:
        """Return the links of a template by their ends, built once."""
        if id(template) not in self._links:
            self._links[id(template)] = {(link.source, link.target): link for link in template.links}
        return self._links[id(template)]

    def _switch_loads(self) -> Iterator[Load]:
        """Yield what an in-switch reduction puts on each GPU's link: its data out once, 1/m of the sum besides.

        On a node of more GPUs than heads the channels decide, at a speed of NCCL's list: h heads move
        (h - 1) p / (p - 1) bytes at it for a byte of the message (`tuning.cc`).
        """
        for node in self.wiring.nodes:
            names = self.placement.gpus(self.placement.class_of(node))
            many, gpus = len(names) > MOST_HEADS, set(names)
            graph = find_switch_graph(self.wiring.template(node), names, network=self.nodes > 1) if many else None
            for link in self.wiring.template(node).links:
                if link.at(VertexKind.NVSWITCH) and {link.source, link.target} & gpus:
                    load = 1 + 1 / self.per_node
                    if graph is not None:
                        moved = (len(graph.heads) - 1) * graph.inside * self.per_node / (self.per_node - 1)
                        load = max(load, link.bandwidth / moved)
                    yield Load(self.wiring.at(node, [link])[0], NVSWITCH, load)

    def _shape(self, version: int) -> Shape:
        slowest = min(self._channels, key=lambda channels: channels.bus_bandwidth)
        templates = [each.template for each in self.placement.classes]
        sm = min(gpu.sm for template in templates for gpu in template.gpus)
        near = KINDS.index(slowest.kind) <= KINDS.index("NVB")
        # Before Hopper not through another GPU.
        nic_near = KINDS.index(slowest.nic_kind) <= KINDS.index("PXN" if sm >= 90 else "PXB")
        gcn = gcn_of(templates[0].gpus[0].model)
        vendors = {template.cpu.vendor for template in templates}
        # RCCL runs LL128 between nodes of meshed boards (`ll128Enabled` of its models).
        ll128 = self.nodes > 1 and gcn.startswith(("gfx94", "gfx95")) if gcn else sm >= 70 and version >= 2005
        # A NIC may write GPU memory in no certain order: aws-ofi-nccl then sets NCCL_PROTO=simple.
        unordered = any(nic.gpudirect and not nic.in_order for template in templates for nic in template.nics)
        return Shape(
            ranks=self.ranks,
            nodes=self.nodes,
            channels=len(slowest.rings),
            channel_bandwidth=slowest.channel_bandwidth / 1e9,
            tree_bandwidth=slowest.tree_intra_bandwidth / 1e9,
            sm=sm,
            nvlink=self.hop in DIRECT,
            nic_latency_us=self.nic_latency_s * 1e6 if version >= _LATENCY_KNOWN_FROM else 0.0,
            amd=vendors == {"amd"},
            mixed=len(vendors) > 1,
            ll128=near and nic_near and ll128,
            simple_only=self._simple_only or (self.nodes > 1 and unordered),
            nvls=self._find_in_switch(sm, version),
            x86=all(template.cpu.arch == "x86_64" for template in templates),
            version=version,
            gcn=gcn,
            mesh=all(map(is_mesh, templates)) and self.per_node == MESHED,
        )

    def _find_in_switch(self, sm: int, version: int) -> InSwitch | None:
        """Return the in-switch reduction of the node whose is slowest; None where some node has none."""
        first = _NVLS_FROM if self.nodes == 1 else _NVLS_TREE_FROM
        if sm < 90 or version < first or self.per_node <= 2 or self.hop != NVSWITCH:
            return None
        graphs = [
            find_switch_graph(each.template, self.placement.gpus(each), network=self.nodes > 1)
            for each in self.placement.classes
        ]
        reductions = [InSwitch(len(g.heads), g.inside / 1e9, g.across / 1e9) for g in graphs if g is not None]
        return (
            min(reductions, key=lambda graph: graph.channels * graph.inside) if len(reductions) == len(graphs) else None
        )


def _edges(nodes: int) -> Iterator[tuple[int, int]]:
    """Yield (source, target) of every edge of both trees, up and down."""
    for tree in double_binary_tree(nodes):
        for node, parent in enumerate(tree.parents):
            if parent is not None:
                yield node, parent
                yield parent, node


def _find_most_carried(nodes: int) -> float:
    """Return bytes that the busiest node sends, or receives, for a byte of the message, half of it down each tree."""
    trees = double_binary_tree(nodes)
    return max(
        sum((tree.parents[node] is not None) + len(tree.children[node]) for tree in trees) / 2 for node in range(nodes)
    )
