"""Schedules of several levels: in each node, between nodes, and in each node again; closed form beside them.

`level_sizes` finds the levels of a placement: how many ranks meet at each, from those under one switch to all. A level
is a set of groups of consecutive ranks, all of one size, whose members are nearer to each other than to any other rank:
cards under one PCIe switch, those of one socket, of one node or NVLink domain, nodes under one leaf switch. Nearness is
of the paths that NCCL's bytes take: without peer to peer, cards of one switch meet at their socket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ddpsim.collectives.schedules import Builder, TransferSchedule, from_root
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
    sizes = [
        set(_groups(per_node, _distance(each.template, placement.gpus(each)), range(len(KINDS))))
        for each in placement.classes
    ]
    return [*sorted(set.intersection(*sizes) - {1, per_node}), per_node]


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


def decomposed(sizes: Sequence[int]) -> TransferSchedule:
    """Return reduce-scatters level by level, then all-gathers back: ranks are digits, the first level's the fastest.

    With the sizes GPUs in a node and nodes it is reduce-scatter inside each node, a ring across nodes for each part and
    all-gather inside, rank r being GPU r mod m of node r // m (BlueConnect, Cho et al. 2019, of any number of levels).
    """
    # At each level a rank exchanges, around a ring of those that differ from it in that digit alone, the part that it
    # was left with by the level before: `begins` says where that part lies, by level and rank, `widths` how wide each
    # of its pieces is. Backwards the same parts are gathered, widest last.
    ranks = math.prod(sizes)
    builder = Builder(ranks, ranks)
    begins = [[0] * ranks]
    strides = [math.prod(sizes[:level]) for level in range(len(sizes))]
    widths = [ranks // math.prod(sizes[: level + 1]) for level in range(len(sizes))]
    for level, size in enumerate(sizes):
        digit = [rank // strides[level] % size for rank in range(ranks)]
        begins.append([begins[-1][rank] + (digit[rank] + 1) % size * widths[level] for rank in range(ranks)])
    for upward in (True, False):
        for level in range(len(sizes)) if upward else range(len(sizes) - 1, -1, -1):
            size, stride, width = sizes[level], strides[level], widths[level]
            for step in range(size - 1) if upward else range(size - 1, 2 * (size - 1)):
                for rank in range(ranks):
                    digit_here = rank // stride % size
                    part = begins[level][rank] + (digit_here - step) % size * width
                    target = rank + ((digit_here + 1) % size - digit_here) * stride
                    builder.send(rank, target, part, part + width, reduce=upward)
    return builder.build()


def build_along_trees(
    nodes: int, per_node: int, root: int, trees: Sequence[Sequence[int | None]], pieces: int
) -> TransferSchedule:
    """Return sums up trees in each node to one root, around the nodes' roots, and down again: Blink's three phases.

    Args:
        root: of all trees, a GPU of each node.
        trees: the parent of each GPU of a node; each carries an equal share.
        pieces: into which each cuts its share, one behind the other; a multiple of the nodes.
    """
    builder = Builder(nodes * per_node, pieces * len(trees))
    hops = [hop for number, parents in enumerate(trees) for hop in _tree_hops(parents, number)]

    def inside(piece: int, *, upward: bool) -> None:
        for _, tree, source, target in sorted(hop[1:] for hop in hops if hop[0] is upward):
            chunk = piece * len(trees) + tree
            for first in range(0, nodes * per_node, per_node):
                builder.send(first + source, first + target, chunk, chunk + 1, reduce=upward)

    for piece in range(pieces):
        inside(piece, upward=True)
    width = pieces * len(trees) // nodes
    for step in range(2 * (nodes - 1)):
        for node in range(nodes):
            part = (node - step) % nodes * width
            source, target = node * per_node + root, (node + 1) % nodes * per_node + root
            builder.send(source, target, part, part + width, reduce=step < nodes - 1)
    for piece in range(pieces):
        inside(piece, upward=False)
    return builder.build()


def two_level_tree(trees: Sequence[Sequence[int | None]], per_node: int, pieces: int = 8) -> TransferSchedule:
    """Return reduce-scatter inside each node, trees across nodes for each part, all-gather inside.

    Args:
        trees: the parent of each node in each tree, None for the root; a part is shared evenly among them.
        pieces: into which each cuts its share, one behind the other.
    """
    nodes, width = len(trees[0]), pieces * len(trees)
    builder = Builder(nodes * per_node, per_node * width)
    _scatter_inside(builder, nodes, per_node)
    # Everything up before anything down: a node is child in one tree and parent in the other, often of the same node,
    # and what goes up waits for less.
    hops = [hop for number, parents in enumerate(trees) for hop in _tree_hops(parents, number)]
    for upward in (True, False):
        for piece in range(pieces):
            for _, tree, source, target in sorted(hop[1:] for hop in hops if hop[0] is upward):
                for gpu in range(per_node):
                    chunk = (gpu + 1) % per_node * width + piece * len(trees) + tree
                    builder.send(source * per_node + gpu, target * per_node + gpu, chunk, chunk + 1, reduce=upward)
    _gather_inside(builder, nodes, per_node)
    return builder.build()


def _tree_hops(parents: Sequence[int | None], number: int) -> Iterator[tuple[bool, int, int, int, int]]:
    """Yield (whether upward, step, tree, source, target) of a piece's hops up tree `number` and down again."""
    depths: dict[int, int] = {}
    for node in from_root(parents):
        up = parents[node]
        depths[node] = 0 if up is None else depths[up] + 1
        if up is not None:
            yield True, -depths[node], number, node, up
            yield False, depths[node], number, up, node


def _scatter_inside(builder: Builder, nodes: int, per_node: int) -> None:
    for step in range(per_node - 1):
        _inner_step(builder, nodes, per_node, step, reduce=True)


def _gather_inside(builder: Builder, nodes: int, per_node: int) -> None:
    for step in range(per_node - 1, 2 * (per_node - 1)):
        _inner_step(builder, nodes, per_node, step, reduce=False)


def _inner_step(builder: Builder, nodes: int, per_node: int, step: int, *, reduce: bool) -> None:
    width = builder.chunks // per_node
    for node in range(nodes):
        for gpu in range(per_node):
            part = (gpu - step) % per_node * width
            source, target = node * per_node + gpu, node * per_node + (gpu + 1) % per_node
            builder.send(source, target, part, part + width, reduce=reduce)
