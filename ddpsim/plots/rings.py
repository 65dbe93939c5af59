"""Rings through a node: the GPUs on a circle, an arrow for each hop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise
from math import cos, pi, sin
from typing import Any

_MOST_RINGS = 8
"""Rings that are drawn, for one row."""
_PITCH = 2.9
"""From the centre of one ring to the next, whose radii are 1."""
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#79706e")


def draw_rings(axes: Any, rings: Sequence[tuple[str, ...]], nics: Collection[str], title: str = "") -> None:
    """Draw each ring, a walk over GPUs, as a circle of its own; the first eight of them.

    A ring closes with its first GPU, or begins and ends with one of `nics`, drawn above the circle.
    """
    for number, ring in enumerate(rings[:_MOST_RINGS]):
        centre = _PITCH * number
        places = _circle(sorted({stop for stop in ring if stop not in nics}, key=number_of), centre)
        places |= _nics(ring, nics, centre)
        for source, target in pairwise(ring):
            arrow = {"arrowstyle": "-|>", "color": _COLOURS[number], "shrinkA": 7, "shrinkB": 7, "linewidth": 1.4}
            across = source in nics or target in nics
            arrow |= {"linestyle": "dashed", "linewidth": 1.0} if across else {}
            axes.annotate("", places[target], places[source], arrowprops=arrow)
        for stop, (x, y) in places.items():
            axes.text(x, y, stop if stop in nics else str(number_of(stop)), ha="center", va="center", fontsize=8)
        order = " ".join(str(number_of(stop)) for stop in ring if stop not in nics)
        axes.text(centre, -1.55, f"ring {number}: {order}", ha="center", va="center", fontsize=6.5)
    shown = min(len(rings), _MOST_RINGS)
    left = f" (first {shown} of {len(rings)} shown)" if shown < len(rings) else ""
    top = 2.0 if any(stop in nics for ring in rings for stop in ring) else 1.3
    axes.set(xlim=(-1.6, _PITCH * max(shown, 3) - 1.3), ylim=(-1.8, top), aspect="equal")
    axes.set_title(f"{title}{left}", fontsize=8)
    axes.set_axis_off()


def _nics(ring: Sequence[str], nics: Collection[str], centre: float) -> dict[str, tuple[float, float]]:
    """Return places of the NICs at a ring's ends, one above the circle, two beside each other."""
    ends = list(dict.fromkeys(stop for stop in (ring[0], ring[-1]) if stop in nics))
    return {nic: (centre + (number - (len(ends) - 1) / 2), 1.7) for number, nic in enumerate(ends)}


def _circle(gpus: Sequence[str], centre: float) -> dict[str, tuple[float, float]]:
    step = 2 * pi / len(gpus)
    return {gpu: (centre + sin(step * number), cos(step * number)) for number, gpu in enumerate(gpus)}


def number_of(name: str) -> int:
    """Return the number at the end of a vertex's name; 0 where there is none."""
    return int(name[len(name.rstrip("0123456789")) :] or 0)
