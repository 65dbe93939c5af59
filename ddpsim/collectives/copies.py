"""What copies within a node load: batches from host memory to GPUs, and what passes between the GPUs of one rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ddpsim.collectives.network.fairness import Demand, LinkId, alone_s
from ddpsim.collectives.routes import PlacementLinks, total_by_key
from ddpsim.topology.graph import Placement
from ddpsim.topology.node import Link
from ddpsim.topology.paths import find_paths

CopyDemand = tuple[Demand, dict[LinkId, float]]
"""What copies of several ranks ask of the network, and the capacities of the links they load.

Ranks of other nodes than the first one's are alike, and load links of their own.
"""


def copies_of(
    placement: Placement,
    ranks: Sequence[int],
    size_bytes: int,
    ends: tuple[int | None, int] = (None, 0),
    rate_limit: float = math.inf,
    *,
    in_turn: bool = False,
) -> CopyDemand:
    """Return the demand of a copy of each of `ranks`, on the first one's node.

    Args:
        size_bytes: of each copy.
        ends: numbers of the rank's devices that it comes from and goes to; None is the host's memory.
        rate_limit: bytes per second at which one goes at most, whatever the links allow.
        in_turn: whether they go one after the other, rather than all at once.
    """
    node, _, node_class = placement.node_of(ranks[0])
    paths, places, (source, target) = find_paths(node_class.template), _on_node(placement, ranks, node), ends
    latency_s, loaded = 0.0, list[tuple[Link, float]]()
    for place in places:
        to = placement.gpus(node_class, target)[place]
        if source is None:
            loaded += [(link, 1.0) for link in paths.from_host(to)]
        else:
            route = paths[placement.gpus(node_class, source)[place], to]
            latency_s = max(latency_s, route.latency_s)
            loaded += route.loads()
    loads, capacities = _load(placement, node, loaded)
    count = len(places)
    if in_turn:
        in_mean = {link: load / count for link, load in loads.items()}
        return Demand(latency_s, count * size_bytes, in_mean, rate_limit=rate_limit), capacities
    return Demand(latency_s, size_bytes, loads, rate_limit=rate_limit, weight=count), capacities


def byte_copy_s(placement: Placement) -> float:
    """Return what a byte takes from page-locked memory to each GPU of a node, all at once, with no more on their links.

    Links carry as much the other way at the same time.
    """
    return alone_s(*copies_of(placement, range(placement.gpus_per_node), 1))


def _on_node(placement: Placement, ranks: Iterable[int], node: int) -> list[int]:
    """Return the places of `ranks` on `node`."""
    each = placement.gpus_per_node
    return [rank % each for rank in ranks if rank // each == node]


def _load(
    placement: Placement, node: int, links: Iterable[tuple[Link, float]]
) -> tuple[dict[LinkId, float], dict[LinkId, float]]:
    """Return the sums of loads by link of a node, and the capacities of those links."""
    wiring = PlacementLinks(placement)
    placed = [(wiring.at(node, [link])[0], load) for link, load in links]
    loads = total_by_key((each.name, load) for each, load in placed)
    return loads, {each.name: each.link.bandwidth for each, _ in placed}
