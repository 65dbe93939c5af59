"""Double binary trees: the properties that make the pair of them use every link fully."""

from math import ceil, log2

import pytest

from ddpsim.collectives.trees import Tree, depth_and_fan, double_binary_tree


def ancestors(tree: Tree, node: int | None) -> list[int]:
    found = []
    while node is not None and (node := tree.parents[node]) is not None:
        found.append(node)
    return found


@pytest.mark.parametrize("nodes", [*range(1, 70), 127, 128, 129, 1000])
def test_each_is_a_binary_tree_and_no_node_is_interior_in_both(nodes: int) -> None:
    pair = double_binary_tree(nodes)
    for tree in pair:
        assert sum(parent is None for parent in tree.parents) == 1
        assert all(len(children) <= 2 for children in tree.children)
        assert all(ancestors(tree, node)[-1:] == [tree.root] for node in range(nodes) if node != tree.root)
        assert tree.depth() <= ceil(log2(nodes)) + 1 if nodes > 1 else tree.depth() == 0
        for node, children in enumerate(tree.children):
            assert all(tree.parents[child] == node for child in children)
    if nodes > 2:
        roots = {tree.root for tree in pair}
        interior = [{node for node in range(nodes) if tree.children[node]} - roots for tree in pair]
        assert not interior[0] & interior[1]


def test_four_nodes_as_nccl_draws_them() -> None:
    first, second = double_binary_tree(4)
    assert first.parents == (None, 2, 0, 2)
    assert second.parents == (1, 3, 1, None)


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 64, 1000])
def test_depth_and_fan_are_those_of_the_wider_and_the_deeper_tree(nodes: int) -> None:
    pair = double_binary_tree(nodes)
    depth = max(len(ancestors(tree, node)) for tree in pair for node in range(nodes))
    fan = max(len(children) for tree in pair for children in tree.children)
    assert depth_and_fan(nodes) == (depth, fan or 1)
