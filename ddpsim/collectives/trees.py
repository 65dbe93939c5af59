"""Double binary trees over nodes.

Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009): two
binary trees in which each node is interior in at most one, each carrying half the data; NCCL numbers them by lowest set
bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


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
    bit = node & -node
    above = (node ^ bit) | (bit << 1)
    return above if above < nodes else node ^ bit


def _renumber(first: list[int | None], node: int, nodes: int) -> int | None:
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
