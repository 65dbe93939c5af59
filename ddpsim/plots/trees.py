"""Trees over nodes: the root on top, every node under its parent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_COLOURS = ("#4c78a8", "#f58518")
_MOST_NODES = 64
"""Nodes that a tree is drawn for, for legible numbers."""


def draw_trees(axes: Any, trees: Sequence[Sequence[int | None]]) -> None:
    """Draw trees side by side.

    Args:
        trees: the parent of each node, None for the root.
    """
    nodes = len(trees[0])
    if nodes > _MOST_NODES:
        axes.text(0.5, 0.5, f"trees over {nodes} nodes: too many to draw", ha="center", va="center", fontsize=8)
        axes.set_axis_off()
        return
    deepest = 0
    for number, parents in enumerate(trees):
        depths = [_depth(parents, node) for node in range(nodes)]
        deepest = max(deepest, *depths)
        left, colour = number * (nodes + 1.0), _COLOURS[number % len(_COLOURS)]
        for node, parent in enumerate(parents):
            if parent is not None:
                axes.plot([left + node, left + parent], [-depths[node], -depths[parent]], color=colour, linewidth=1.4)
        for node, depth in enumerate(depths):
            box = {"boxstyle": "circle,pad=0.2", "facecolor": "white", "edgecolor": colour}
            axes.text(left + node, -depth, str(node), ha="center", va="center", fontsize=8, bbox=box)
        middle = left + (nodes - 1) / 2
        axes.text(middle, 0.75, f"tree {number} over {nodes} nodes", ha="center", va="center", fontsize=7)
    axes.set(xlim=(-1, len(trees) * (nodes + 1.0) - 1), ylim=(-deepest - 0.5, 1.1))
    axes.set_axis_off()


def _depth(parents: Sequence[int | None], node: int) -> int:
    depth, parent = 0, parents[node]
    while parent is not None:
        depth, parent = depth + 1, parents[parent]
    return depth
