"""Double binary trees over nodes, and schedules along trees: reduce to the root, broadcast from it.

Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009): two
binary trees in which each node is interior in at most one, each carrying half the data; NCCL numbers them by lowest set
bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ddpsim.collectives.schedules import Builder, TransferSchedule, from_root


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree over nodes 0 to n-1 gives each node's parent, None at the root, and its children in ascending order."""

    parents: tuple[int | None, ...]
    children: tuple[tuple[int, ...], ...]

    @property
    def root(self) -> int:
        """The node without a parent."""
        return self.parents.index(None)

    def depth(self) -> int:
        """Return the number of hops from the farthest leaf to the root."""
        reached, hops = [self.root], 0
        while reached := [child for node in reached for child in self.children[node]]:
            hops += 1
        return hops


@lru_cache(maxsize=64)
def double_binary_tree(nodes: int) -> tuple[Tree, Tree]:
    """Return the two trees over `nodes` nodes: the second is the first mirrored (even) or shifted by one (odd)."""
    first = [_parent(node, nodes) for node in range(nodes)]
    return _tree(first), _tree([_renumber(first, node, nodes) for node in range(nodes)])


@lru_cache(maxsize=64)
def depth_and_fan(nodes: int) -> tuple[int, int]:
    """Return the depth of the deeper of the two trees over `nodes` nodes, and the most children of a node, or 1."""
    trees = double_binary_tree(nodes)
    fan = max(len(children) for tree in trees for children in tree.children)
    return max(tree.depth() for tree in trees), fan or 1


def _parent(node: int, nodes: int) -> int | None:
    if node == 0:
        return None
    # The lowest set bit is a node's height: leaves are odd. Its parent has the next bit set instead, or where there is
    # no such node, this bit cleared: `ncclGetBtree` in NCCL's `src/graph/trees.cc`.
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    return above if above < nodes else node ^ bit


def _renumber(first: list[int | None], node: int, nodes: int) -> int | None:
    # Mirrored, leaves (odd numbers) become inner nodes (even ones) where the count is even; else shifting by one does.
    if nodes % 2 == 0:
        parent = first[nodes - 1 - node]
        return None if parent is None else nodes - 1 - parent
    parent = first[(node - 1) % nodes]
    return None if parent is None else (parent + 1) % nodes


def _tree(parents: list[int | None]) -> Tree:
    children: list[list[int]] = [[] for _ in parents]
    for node, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(node)
    return Tree(tuple(parents), tuple(map(tuple, children)))


def tree(parents: Sequence[int | None], chunks: int = 1) -> TransferSchedule:
    """Return reduce to the root and broadcast from it, `chunks` pieces one behind the other.

    Args:
        parents: the parent of each rank, None for the root.
    """
    builder = Builder(len(parents), chunks)
    downward = from_root(parents)
    for chunk in range(chunks):
        for rank in reversed(downward):
            if (parent := parents[rank]) is not None:
                builder.send(rank, parent, chunk, chunk + 1, reduce=True)
        for rank in downward:
            if (parent := parents[rank]) is not None:
                builder.send(parent, rank, chunk, chunk + 1, reduce=False)
    return builder.build()


def in_switch(parents: Sequence[int | None], per_node: int, heads: Sequence[int], pieces: int = 1) -> TransferSchedule:
    """Return reduction and multicast by each node's switch, between nodes along a tree over `parents`.

    Every GPU sends a piece to the switch, which sends the sum to the piece's head, the same GPU number on each node;
    the heads reduce to the root's and back; each sends the result to its switch, which sends it to all. Participants
    are numbered node by node: per_node GPUs, the switch as it reduces, the switch as it multicasts. Chunks are numbered
    piece by piece, head by head.
    """
    width = per_node + 2
    builder = Builder(len(parents) * width, pieces * len(heads))
    downward = from_root(parents)
    for chunk in range(pieces * len(heads)):
        head = heads[chunk % len(heads)]
        for first in range(0, len(parents) * width, width):
            for gpu in range(per_node):
                builder.send(first + gpu, first + per_node, chunk, chunk + 1, reduce=True)
            builder.send(first + per_node, first + head, chunk, chunk + 1, reduce=False)
        for node in reversed(downward):
            if (up := parents[node]) is not None:
                builder.send(node * width + head, up * width + head, chunk, chunk + 1, reduce=True)
        for node in downward:
            if (up := parents[node]) is not None:
                builder.send(up * width + head, node * width + head, chunk, chunk + 1, reduce=False)
        for first in range(0, len(parents) * width, width):
            builder.send(first + head, first + per_node + 1, chunk, chunk + 1, reduce=False)
            for gpu in range(per_node):
                builder.send(first + per_node + 1, first + gpu, chunk, chunk + 1, reduce=False)
    return builder.build()
