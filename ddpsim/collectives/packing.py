"""Spanning trees packed into a graph of links: as many as fit, as Blink broadcasts and sums along.

Source: Wang et al., "Blink: Fast and Generic Collectives for Distributed ML" (2020). As many trees of unit links fit,
from one root to all, as links must be cut to part the root from any other (Edmonds, 1973); they are found one by one,
each link taken only where the rest still fits (Lovász, 1976).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

Links = Mapping[tuple[int, int], int]
"""Parallel links from one vertex to another."""


def pack_trees(vertices: int, links: Links) -> tuple[int, list[list[int | None]]]:
    """Return the root from which most trees fit, and the parent of each vertex in each tree.

    >>> pack_trees(2, {(0, 1): 2, (1, 0): 2})
    (0, [[None, 0], [None, 0]])
    """
    fits = [_count_trees(vertices, links, root) for root in range(vertices)]
    root = max(range(vertices), key=lambda each: (fits[each], -each))
    left = dict(links)
    return root, [_tree(vertices, left, root, count) for count in range(fits[root] - 1, -1, -1)]


def _count_trees(vertices: int, links: Links, root: int) -> int:
    """Return how many trees from `root` fit: the least flow from it to any other vertex."""
    return min((_flow(vertices, links, root, target) for target in range(vertices) if target != root), default=0)


def _tree(vertices: int, left: dict[tuple[int, int], int], root: int, others: int) -> list[int | None]:
    """Take a tree out of `left` such that `others` still fit beside it."""
    parents: list[int | None] = [None] * vertices
    inside = [root]
    while len(inside) < vertices:
        source, target = next(
            (source, target)
            for source in inside
            for target in range(vertices)
            if target not in inside
            and left.get((source, target), 0)
            and _fits_without(vertices, left, (source, target), root, others)
        )
        left[source, target] -= 1
        parents[target] = source
        inside.append(target)
    return parents


def _fits_without(
    vertices: int, left: dict[tuple[int, int], int], link: tuple[int, int], root: int, others: int
) -> bool:
    """Whether `others` trees still fit without one of the links between two vertices."""
    if others == 0:
        return True
    return _count_trees(vertices, {**left, link: left[link] - 1}, root) >= others


def _flow(vertices: int, links: Links, source: int, target: int) -> int:
    """Return the most that flows, by augmenting along shortest ways (Edmonds and Karp, 1972)."""
    left = dict(links)
    total = 0
    while (way := _find_way(vertices, left, source, target)) is not None:
        for ends in way:
            left[ends] -= 1
            left[ends[1], ends[0]] = left.get((ends[1], ends[0]), 0) + 1
        total += 1
    return total


def _find_way(vertices: int, left: Links, source: int, target: int) -> Sequence[tuple[int, int]] | None:
    before: dict[int, int] = {source: source}
    frontier = deque([source])
    while frontier and target not in before:
        here = frontier.popleft()
        for there in range(vertices):
            if there not in before and left.get((here, there), 0) > 0:
                before[there] = here
                frontier.append(there)
    if target not in before:
        return None
    way, here = [], target
    while here != source:
        way.append((before[here], here))
        here = before[here]
    return way
