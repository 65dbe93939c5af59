"""The channels of a node: the rings and chains that a collective's bytes take through it.

They are found as NCCL finds them (`src/graph/search.cc`, 2.30): for each speed of a falling list as many rings as the
links carry, the best product of rings and speed kept, near routes preferred. Nodes of a kind have the same channels.
Read `find_channels`, and `_find`, which it calls: rings that are given, those of a mesh, or the search's.

Of boards of eight GPUs that xGMI joins each to each RCCL has the orders in tables, for a search would find fewer rings
(ROCm/rccl src/graph/rome_models.cc @cb829d62: rome_model_79 on one node, rome_model_81 with a NIC for each GPU). The
orders here (`mesh_rings`) are others that load the links in the same way: on one node seven cycles in both directions,
which take every link twice; between nodes eight paths, one from each GPU by its own NIC, which take every link once.
Each is there as often as in RCCL's tables, two times and eight, of which four fit the channels searched here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from ddpsim.collectives.channel_search import best_rings, count_fewest_rings, double_rings, nic_echo, speeds_of
from ddpsim.collectives.ring_search import Ring, RingSearch
from ddpsim.collectives.routes import total_by_key
from ddpsim.common.errors import TopologyError, UnknownNameError
from ddpsim.topology.hardware import gcn_of, xgmi_bandwidth
from ddpsim.topology.node import MESHED, NETWORK, NodeTemplate, is_mesh
from ddpsim.topology.paths import KINDS, Paths, Route, farther, find_paths

_COPIES = 4
"""Of each path between nodes: 32 channels in all."""


def mesh_rings(template: NodeTemplate, paths: Paths, *, network: bool) -> list[Ring]:
    """Return the rings of a mesh of eight; none of another node, or where GPUs and NICs are not beside each other."""
    gpus = tuple(gpu.name for gpu in template.gpus)
    if not is_mesh(template):
        return []
    if not network:
        cycles = [(gpus[-1], *(gpus[place] for place in zigzag(start, MESHED - 1))) for start in range(MESHED - 1)]
        return 2 * [Ring(order) for cycle in cycles for order in (cycle, (cycle[0], *reversed(cycle[1:])))]
    nearest = {gpu: min((nic.name for nic in template.nics), key=lambda nic: paths.distance(gpu, nic)) for gpu in gpus}
    if len(set(nearest.values())) < len(gpus):
        return []
    orders = [tuple(gpus[place] for place in zigzag(start, MESHED)) for start in range(MESHED)]
    return _COPIES * [Ring(order, nearest[order[0]], nearest[order[-1]]) for order in orders]


def zigzag(start: int, count: int) -> list[int]:
    """Return all numbers below `count`, from `start` to both sides by turns: start, +1, -1, +2, -2, ..."""
    steps = [0] + [side * step for step in range(1, count // 2 + 1) for side in (1, -1)]
    return [(start + step) % count for step in steps[:count]]


MAX_CHANNELS = 32
"""Channels a ring search may find, half of NCCL's MAXCHANNELS of 64."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One ring through a node, or the chain that a tree takes there.

    Attributes:
        gpus: in the order the bytes take.
        bandwidth: bytes per second as NCCL counts it, from its list of speeds.
        routes: of each hop between consecutive GPUs; a ring of one node closes with the hop from last to first.
        nic_in, nic_out: NICs by which the ring enters and leaves; None on one node.
        entry: from `nic_in` to the first GPU; exit: from the last GPU to `nic_out`.
    """

    gpus: tuple[str, ...]
    bandwidth: float
    routes: tuple[Route, ...]
    nic_in: str | None = None
    nic_out: str | None = None
    entry: Route | None = None
    exit: Route | None = None

    @property
    def kind(self) -> str:
        """The farthest kind of route between its GPUs; LOC with one GPU."""
        return _farthest(self.routes)

    @property
    def nic_kind(self) -> str:
        """The farthest kind of route between a GPU and a NIC; LOC on one node."""
        return _farthest(self._ends)

    @property
    def _ends(self) -> list[Route]:
        return [route for route in (self.entry, self.exit) if route is not None]

    def loads(self) -> dict[str, float]:
        """Return bytes on each link, network ports included, for each byte that goes round the ring."""
        routes = (*self.routes, *self._ends)
        ports = (f"{NETWORK}>{self.nic_in}", f"{self.nic_out}>{NETWORK}") if self.nic_in else ()
        inside = [(link.name, load) for route in routes for link, load in route.loads()]
        return total_by_key([*inside, *((port, 1.0) for port in ports)])


@dataclass(frozen=True, slots=True)
class Channels:
    """These are all channels of a kind of node.

    Attributes:
        rings: one `Channel` each, all of the same bandwidth.
        trees: the chains by which trees run through the node, one for each ring and in its order unless stated; the
            first GPU is the one that talks to other nodes; bytes go both ways along `routes`.
        tree_intra_bandwidth: of one tree channel inside the node; up to twice that at the NIC.
        network: whether the rings pass through NICs to other nodes.
        sustained_bandwidth: bytes per second that all rings together carry at most, shared evenly among them; not
            rounded down to NCCL's list of speeds.
        given: whether the rings were stated, or are a mesh's, rather than found.
    """

    rings: tuple[Channel, ...]
    trees: tuple[Channel, ...]
    tree_intra_bandwidth: float
    network: bool
    sustained_bandwidth: float
    given: bool = False

    @property
    def channel_bandwidth(self) -> float:
        """Bytes per second of one ring as NCCL counts it."""
        return self.rings[0].bandwidth

    @property
    def bus_bandwidth(self) -> float:
        """Bytes per second of all rings together as NCCL counts it."""
        return len(self.rings) * self.channel_bandwidth

    @property
    def kind(self) -> str:
        """The farthest kind of route between GPUs that a ring uses."""
        return max((ring.kind for ring in self.rings), key=KINDS.index)

    @property
    def nic_kind(self) -> str:
        """The farthest kind of route between GPU and NIC that a ring uses; LOC on one node."""
        return max((ring.nic_kind for ring in self.rings), key=KINDS.index)

    def loads(self) -> dict[str, float]:
        """Return bytes on each link for each byte of a message shared evenly among the rings."""
        return shared_loads(self.rings)


def find_channels(
    template: NodeTemplate,
    gpus: Sequence[str] | None = None,
    *,
    network: bool = False,
    pxn: bool = True,
    gpudirect: bool | None = None,
    cross_nic: bool = True,
) -> Channels:
    """Return the channels of a kind of node; found once for equal arguments.

    Args:
        gpus: names of the GPUs that take part, in rank order; all of them where None.
        network: whether other nodes take part, so that rings pass through NICs.
        pxn: whether a GPU may send to a far NIC through a GPU near it.
        gpudirect: overrides what the NICs say; None keeps it.
        cross_nic: whether rings may leave by other NICs than they entered by, in pairs of opposite directions, where
            that is faster (`NCCL_CROSS_NIC`: 2 or 0). Every other node takes a pair's rings the other way round.

    Raises:
        TopologyError: a GPU that the node lacks or that is named twice, or a network without NICs.
    """
    names = tuple(gpu.name for gpu in template.gpus)
    chosen = names if gpus is None else tuple(gpus)
    for gpu in chosen:
        if gpu not in names:
            raise UnknownNameError.among("GPU", gpu, names, place=template.name)
    if not chosen or len(set(chosen)) < len(chosen):
        raise TopologyError(f"GPUs {', '.join(chosen) or 'none'}", place=template.name, remedy="name each GPU once")
    if network and not template.nics:
        raise TopologyError(f"{template.name} has no NIC", remedy="give its node `nics`, or use one node")
    return _find(template, chosen, network, pxn, gpudirect, cross_nic)


@lru_cache(maxsize=512)
def _find(
    template: NodeTemplate,
    gpus: tuple[str, ...],
    network: bool,
    pxn: bool,
    gpudirect: bool | None,
    cross_nic: bool,
) -> Channels:
    template = template.select_gpus(gpus)
    paths = find_paths(template, pxn=pxn, gpudirect=gpudirect)
    capacities = {link.name: link.bandwidth for link in template.links}
    nics = tuple(nic.name for nic in template.nics) if network else ()
    sm = template.gpus[0].sm
    # A machine's file may state rings, as NCCL_GRAPH_FILE does; then come a mesh's, and the search.
    stated = _rings_over(template.rings, template, gpus, network) or mesh_rings(template, paths, network=network)
    if stated:
        rings = stated
        speed = template.ring_bandwidth or _even_speed(rings, paths, capacities)
    else:
        search = RingSearch(paths, _count_speeds(template), gpus, nics, echo=nic_echo(sm))
        fewest = count_fewest_rings(paths, gpus)
        packed = best_rings(search, speeds_of(sm, network), MAX_CHANNELS, cross_nic=cross_nic, fewest=fewest)
        rings, speed = (packed.rings, packed.speed) if packed else ([], 0.0)
    # Links slower than NCCL's slowest speed still carry a ring in rank order, at whatever they have.
    if not rings:
        rings = [_make_ordered_ring(gpus, nics, paths)]
        speed = _even_speed(rings, paths, capacities)
    if not stated:
        rings, speed = double_rings(rings, speed, sm, MAX_CHANNELS)
    channels = tuple(_channel(ring, speed, paths) for ring in rings)
    # NCCL's trees are chains through the same GPU orders, unless the same file states others, one a ring.
    given_trees = _rings_over(template.trees, template, gpus, network) if stated else []
    as_stated = len(given_trees) == len(rings)
    trees = tuple(_channel(tree, speed, paths) for tree in given_trees) if as_stated else channels
    chains = tuple(_chain(channel) for channel in trees)
    inside = template.tree_bandwidth if as_stated else None
    return Channels(
        rings=channels,
        trees=chains,
        tree_intra_bandwidth=inside or (_raise_speed(chains, capacities, speeds_of(sm, network)) if network else speed),
        network=network,
        sustained_bandwidth=_find_sustained_speed(shared_loads(channels), capacities),
        given=bool(stated),
    )


def _count_speeds(template: NodeTemplate) -> dict[str, float]:
    """Return what the search counts each link as: xGMI no more than RCCL does, whatever it carries."""
    most = xgmi_bandwidth(gcn_of(template.gpus[0].model))
    return {
        link.name: min(link.bandwidth, most * link.count) if link.kind == "xgmi" else link.bandwidth
        for link in template.links
    }


def _channel(ring: Ring, speed: float, paths: Paths) -> Channel:
    order = ring.gpus
    closing = [(order[-1], order[0])] if ring.nic_in is None and len(order) > 1 else []
    routes = tuple(paths[pair] for pair in (*pairwise(order), *closing))
    if ring.nic_in is None or ring.nic_out is None:
        return Channel(order, speed, routes)
    entry, leave = paths[ring.nic_in, order[0]], paths[order[-1], ring.nic_out]
    return Channel(order, speed, routes, ring.nic_in, ring.nic_out, entry, leave)


def _chain(ring: Channel) -> Channel:
    """Return the chain from the GPU by the NIC through the others: the ring without what closes it."""
    return replace(ring, routes=ring.routes[: len(ring.gpus) - 1], nic_out=ring.nic_in, exit=None)


def _rings_over(
    known: Sequence[tuple[str, ...]], template: NodeTemplate, gpus: tuple[str, ...], network: bool
) -> list[Ring]:
    """Return those of `known` over exactly `gpus`, with NICs at their ends where several nodes take part."""
    rings = []
    nics = {nic.name for nic in template.nics}
    for stops in known:
        order = tuple(stop for stop in stops if stop not in nics)
        if set(order) == set(gpus) and (len(order) < len(stops)) == network:
            rings.append(Ring(order, stops[0], stops[-1]) if network else Ring(order))
    return rings


def _make_ordered_ring(gpus: tuple[str, ...], nics: tuple[str, ...], paths: Paths) -> Ring:
    """Return the ring in rank order, through the NIC nearest to its first GPU."""
    if not nics:
        return Ring(gpus)
    nearest = min(nics, key=lambda nic: paths.distance(nic, gpus[0]))
    last = min(reversed(gpus), key=lambda gpu: paths.distance(gpu, nearest)) if len(gpus) > 1 else gpus[0]
    far = paths.distance(gpus[-1], nearest) == KINDS.index("DIS")
    return Ring((*(gpu for gpu in gpus if gpu != last), last) if far else gpus, nearest, nearest)


def _even_speed(rings: Sequence[Ring], paths: Paths, capacities: Mapping[str, float]) -> float:
    channels = [_channel(ring, 1.0, paths) for ring in rings]
    total = _find_sustained_speed(shared_loads(channels), capacities)
    return (max(capacities.values()) if total == float("inf") else total) / len(rings)


def shared_loads(channels: Sequence[Channel]) -> dict[str, float]:
    """Return bytes on each link for each byte of a message that `channels` share evenly."""
    return total_by_key((link, load / len(channels)) for each in channels for link, load in each.loads().items())


def _find_sustained_speed(loads: Mapping[str, float], capacities: Mapping[str, float]) -> float:
    return min((capacities[link] / load for link, load in loads.items()), default=float("inf"))


def _raise_speed(chains: Sequence[Channel], capacities: Mapping[str, float], speeds: Sequence[float]) -> float:
    """Return the speed inside the node to which NCCL raises trees, as far as the chains' links carry it.

    It takes the next speed of its table while the last is below twice the NIC's, so that it may end above that. Source:
    the second pass of `ncclTopoCompute` in NCCL's `src/graph/search.cc`.
    """
    speed = chains[0].bandwidth
    inside = total_by_key((link.name, load) for each in chains for route in each.routes for link, load in route.loads())
    entries = [chain.entry for chain in chains if chain.entry]
    outside = total_by_key((link.name, load * speed) for entry in entries for link, load in entry.loads())
    # What the way to the NIC takes stays at the ring's speed; the rest of each link is the chains'.
    left = ((capacities[name] - outside.get(name, 0.0)) / load for name, load in inside.items())
    free = min(left, default=float("inf"))
    raised = speed
    for candidate in sorted(candidate for candidate in speeds if candidate > speed):
        if raised >= 2 * speed or candidate > free:
            break
        raised = candidate
    return raised


def _farthest(routes: Sequence[Route]) -> str:
    kind = "LOC"
    for route in routes:
        kind = farther(kind, route.kind)
    return kind
