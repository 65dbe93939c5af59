"""The levels of a network: how many ranks meet at each, from those under one switch to all.

A level is a set of groups of consecutive ranks, all of one size, whose members are nearer to each other than to any
other rank: cards under one PCIe switch, those of one socket, of one node or NVLink domain, nodes under one leaf switch.
Nearness is of the paths that NCCL's bytes take: without peer to peer, cards of one switch meet at their socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ddpsim.topology.domains import group_by_domain
from ddpsim.topology.graph import NodeTemplate, Placement
from ddpsim.topology.paths import KINDS, find_paths


def level_sizes(placement: Placement) -> list[int]:
    """Return how many groups of each level the next one joins, the innermost first; their product is all ranks.

    Nodes of several kinds have the levels that all of them have.

    >>> from ddpsim.topology.spec import load_topology
    >>> level_sizes(load_topology("8xl40s-pcie").place(4)), level_sizes(load_topology("lab-trunk").place(4))
    ([2, 2, 2, 4], [2, 2])
    """
    joined = group_by_domain(placement)
    inside = _find_node_levels(placement) if joined is placement else [joined.gpus_per_node]
    outside = _find_network_levels(joined)
    groups = [*inside, *(inside[-1] * nodes for nodes in outside)]
    sizes = [group // before for before, group in zip([1, *groups], groups, strict=False)]
    return [size for size in sizes if size > 1] or [1]


def _find_node_levels(placement: Placement) -> list[int]:
    """Return the sizes of the groups of ranks in a node, ascending; the last is the node."""
    per_node = placement.gpus_per_node
    if placement.topology.compute_device == "cpu":
        return [per_node]
    found = [
        set(_groups(per_node, _distance(each.template, placement.gpus(each)), range(len(KINDS))))
        for each in placement.classes
    ]
    return [*sorted(set.intersection(*found) - {1, per_node}), per_node]


def _distance(template: NodeTemplate, gpus: tuple[str, ...]) -> Callable[[int, int], int]:
    paths = find_paths(template)
    return lambda one, other: 0 if one == other else KINDS.index(paths[gpus[one], gpus[other]].kind)


def _find_network_levels(placement: Placement) -> list[int]:
    """Return the sizes in nodes of the groups of nodes, ascending; the last is all."""
    nodes, leaf = placement.nodes, placement.topology.fabric.leaf

    def distance(one: int, other: int) -> int:
        return 0 if leaf(one, 0) == leaf(other, 0) else 1

    return [*sorted(set(_groups(nodes, distance, range(2))) - {1, nodes}), nodes]


def _groups(count: int, distance: Callable[[int, int], int], most: range) -> Iterator[int]:
    """Yield the sizes of the groups whose members are no farther apart than some distance, where they tile `count`."""
    apart = [[distance(one, other) for other in range(count)] for one in range(count)]
    for limit in most:
        size = sum(each <= limit for each in apart[0])
        if count % size == 0 and all(
            (apart[one][other] <= limit) == (one // size == other // size)
            for one in range(count)
            for other in range(count)
        ):
            yield size
