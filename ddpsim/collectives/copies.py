"""What copies within a node load: batches from host memory to GPUs, and what passes between the GPUs of one rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ddpsim.collectives.routes import PlacementLinks
from ddpsim.collectives.totals import total_by_key
from ddpsim.network.fairness import Demand, LinkId, alone_s
from ddpsim.topology.graph import Placement
from ddpsim.topology.node import Link
from ddpsim.topology.paths import find_paths

CopyDemand = tuple[Demand, dict[LinkId, float]]
"""What copies of several ranks ask of the network, and the capacities of the links they load.

Ranks of other nodes than the first one's are alike, and load links of their own.
"""


def copies_of(
    placement: Placement, ranks: Sequence[int], size_bytes: int, rate_limit: float = math.inf, *, in_turn: bool = False
) -> CopyDemand:
    """Return the demand of the copies of `ranks` from host memory, on the first one's node.

    Args:
        size_bytes: of each copy.
        rate_limit: bytes per second at which one goes at most, whatever the links allow.
        in_turn: whether they go one after the other, rather than all at once.
    """
    node, _, node_class = placement.node_of(ranks[0])
    names, paths, gpus = placement.gpus(node_class), find_paths(node_class.template), _on_node(placement, ranks, node)
    links = ((link, 1.0) for gpu in gpus for link in paths.from_host(names[gpu]))
    loads, capacities = _load(placement, node, links)
    count = len(gpus)
    if in_turn:
        in_mean = {link: load / count for link, load in loads.items()}
        return Demand(0.0, count * size_bytes, in_mean, rate_limit=rate_limit), capacities
    return Demand(0.0, size_bytes, loads, rate_limit=rate_limit, weight=count), capacities


def byte_copy_s(placement: Placement) -> float:
    """Return what a byte takes from page-locked memory to each GPU of a node, all at once, with no more on their links.

    Links carry as much the other way at the same time.
    """
    return alone_s(*copies_of(placement, range(placement.gpus_per_node), 1))


def peer_demand(placement: Placement, ranks: Sequence[int], source: int, target: int, size_bytes: int) -> CopyDemand:
    """Return the demand of a copy from one device of each of `ranks` to another on the first one's node."""
    node, _, node_class = placement.node_of(ranks[0])
    paths, places = find_paths(node_class.template), _on_node(placement, ranks, node)
    sources, targets = (placement.of_device(number).gpus(node_class) for number in (source, target))
    routes = [paths[sources[place], targets[place]] for place in places]
    loads, capacities = _load(placement, node, (load for route in routes for load in route.loads()))
    return Demand(max(each.latency_s for each in routes), size_bytes, loads, weight=len(places)), capacities


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
