"""Rings through a node: the GPUs on a circle, an arrow for each hop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import cos, pi, sin
from typing import Any

_MOST_RINGS = 8
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#79706e")


def draw_rings(axes: Any, rings: Sequence[tuple[str, ...]]) -> None:
    """Draw each ring, a closed walk over GPUs, as a circle of its own; the first eight of them."""
    for number, ring in enumerate(rings[:_MOST_RINGS]):
        places = _circle(sorted(set(ring), key=_number), centre=2.9 * number)
        for source, target in pairwise(ring):
            arrow = {"arrowstyle": "-|>", "color": _COLOURS[number], "shrinkA": 7, "shrinkB": 7, "linewidth": 1.4}
            axes.annotate("", places[target], places[source], arrowprops=arrow)
        for gpu, (x, y) in places.items():
            axes.text(x, y, str(_number(gpu)), ha="center", va="center", fontsize=8)
        order = " ".join(str(_number(gpu)) for gpu in ring)
        axes.text(2.9 * number, -1.55, f"ring {number}: {order}", ha="center", va="center", fontsize=6.5)
    shown = min(len(rings), _MOST_RINGS)
    axes.set(xlim=(-1.6, 2.9 * max(shown, 3) - 1.3), ylim=(-1.8, 1.3), aspect="equal")
    axes.set_axis_off()


def _circle(gpus: Sequence[str], centre: float) -> dict[str, tuple[float, float]]:
    step = 2 * pi / len(gpus)
    return {gpu: (centre + sin(step * number), cos(step * number)) for number, gpu in enumerate(gpus)}


def _number(gpu: str) -> int:
    return int(gpu.lstrip("abcdefghijklmnopqrstuvwxyz") or 0)
