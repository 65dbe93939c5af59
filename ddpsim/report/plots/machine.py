"""A machine's graph: sockets on top, switches, devices, then what joins them; below it its rings and trees."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from math import cos, pi, sin
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ddpsim.report.plots.figure import save
from ddpsim.topology.declared import rejoin
from ddpsim.topology.graph import Link, Topology
from ddpsim.topology.node import VertexKind

_ROWS = {
    "cpu": 4.0, "pcie": 3.0, "host_out": 3.0, "host_in": 1.0, "nvswitch": 0.9, "adapter": 1.0,
    "leaf": 0.0, "rail": 0.0, "spine": -0.9,
}  # fmt: skip
_LINKS = {
    "nvlink": "#54a24b",
    "xgmi": "#54a24b",
    "pcie": "0.55",
    "host_bridge": "0.35",
    "socket": "#e45756",
    "nic": "#4c78a8",
    "network": "#b279a2",
}
_MOST_DEVICES = 16
"""GPUs of a node that are drawn, for legible names."""
_GRAPH_INCHES, _RINGS_INCHES, _TREES_INCHES = 5.4, 2.2, 2.0
"""Heights of the three parts of the picture."""


def plot_topology(
    topology: Topology,
    path: str | Path,
    rings: Mapping[str, Mapping[str, Sequence[tuple[str, ...]]]] | None = None,
    trees: Sequence[Sequence[int | None]] = (),
) -> None:
    """Draw each node template's graph: colour by kind of link, width by bandwidth.

    Args:
        topology: the machine.
        path: the PNG.
        rings: of templates by name, under a title each; walks over GPUs, closed or between NICs, drawn under the graph.
        trees: over nodes, drawn under them; the parent of each node.
    """
    shown = {name: {title: each for title, each in rows.items() if each} for name, rows in (rings or {}).items()}
    most = max(map(len, shown.values()), default=0)
    widest = max(min(len(g.template.gpus), _MOST_DEVICES) + len(g.template.nics) for g in topology.groups)
    heights = [_GRAPH_INCHES, *[_RINGS_INCHES] * most, *([_TREES_INCHES] if trees else [])]
    size = (max(6.5, 0.85 * widest) * len(topology.groups), sum(heights))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.add_gridspec(len(heights), len(topology.groups), height_ratios=heights)
    for column, group in enumerate(topology.groups):
        axes = figure.add_subplot(grid[0, column])
        hidden = {gpu.name for gpu in group.template.gpus[_MOST_DEVICES:]}
        _draw_node(axes, _first_node_links(topology, column, hidden))
        title = f"{group.count} x {group.template.name}, fabric {topology.fabric.kind}"
        axes.set_title(f"{title} (first {_MOST_DEVICES} of {len(group.template.gpus)} shown)" if hidden else title)
        axes.set_axis_off()
        for row, (title, each) in enumerate(shown.get(group.template.name, {}).items(), 1):
            nics = {nic.name for nic in group.template.nics}
            _draw_rings(figure.add_subplot(grid[row, column]), each, nics, title)
    if trees:
        _draw_trees(figure.add_subplot(grid[-1, :]), trees)
    save(figure, path)


def _draw_node(axes: Any, links: Sequence[Any]) -> None:
    places = _places(links)
    strongest = max(link.bandwidth for link in links)
    drawn: set[str] = set()
    for link in links:
        (x0, y0), (x1, y1) = places[link.source], places[link.target]
        # Vertices of one row are joined by arcs: a straight line would run through those between.
        bend = 0.0 if y0 != y1 else 0.35
        label = f"{link.kind}, {link.bandwidth / 1e9:g} GB/s"
        width = 0.7 + 2.6 * (link.bandwidth / strongest) ** 0.5
        axes.annotate(
            "", (x1, y1), (x0, y0),
            arrowprops={
                "arrowstyle": "-", "color": _LINKS.get(link.kind, "0.6"), "alpha": 0.8,
                "linewidth": width,
                "connectionstyle": f"arc3,rad={bend if x0 < x1 else -bend}",
            },
        )  # fmt: skip
        if label not in drawn:
            drawn.add(label)
            axes.plot([], [], color=_LINKS.get(link.kind, "0.6"), linewidth=width, label=label)
    for vertex, (x, y) in places.items():
        box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "0.3"}
        axes.text(x, y, vertex, ha="center", va="center", fontsize=8, bbox=box)
    xs, ys = zip(*places.values(), strict=True)
    axes.set(xlim=(min(xs) - 0.7, max(xs) + 0.7), ylim=(min(ys) - 1.0, max(ys) + 0.5))
    axes.legend(fontsize=7, loc="lower left", ncols=3, frameon=False)


def _first_node_links(topology: Topology, column: int, hidden: Collection[str]) -> list[Link]:
    """Return the links of a template's first node, its NICs plugged into the fabric's switches, trunks above them."""
    template = topology.groups[column].template
    node = sum(group.count for group in topology.groups[:column])
    leaves = topology.fabric.leaves(node, template)
    links = []
    for link in template.links:
        source, target = link.ends()
        ends = [
            leaves.get(other.name, end) if end.kind == VertexKind.NETWORK else end
            for end, other in ((source, target), (target, source))
        ]
        if not {link.source, link.target} & set(hidden):
            links.append(rejoin(link, *ends))
    trunks = topology.trunks(topology.nodes).values()
    return links + [trunk for trunk in trunks if {trunk.source, trunk.target} & {leaf.name for leaf in leaves.values()}]


def _places(links: Sequence[Link]) -> dict[str, tuple[float, float]]:
    """Return the place of each vertex: devices in one row, grouped under their switch, others at the middle of theirs.

    From the devices outward, each kind on the row of `_ROWS`: a PCIe switch, a socket, a leaf stands over the mean of
    the vertices that link to it, which are placed before; the other kinds are spread about the middle.
    """
    kinds = {end.name: end.kind for link in links for end in link.ends()}
    vertices = sorted(kinds)
    devices = [v for v in vertices if kinds[v] not in _ROWS]
    above = {v: sorted(link.target for link in links if link.source == v and link.target in vertices) for v in devices}
    order = sorted(devices, key=lambda v: (_find_first(above[v], kinds), _number_of(v), v))
    places = {v: (float(n), 2.0) for n, v in enumerate(order)}
    for kind in ("pcie", "cpu", "leaf", "rail"):
        for vertex in (v for v in vertices if kinds[v] == kind):
            inward = (link.source for link in links if link.target == vertex and link.kind != "socket")
            below = [places[source][0] for source in inward if source in places]
            places[vertex] = (sum(below) / len(below) if below else 0.0, _ROWS[kind])
    middle = (len(order) - 1) / 2
    for row in ("nvswitch", "spine", "adapter", "host_out", "host_in"):
        alike = [v for v in vertices if kinds[v] == row]
        for number, vertex in enumerate(alike):
            places[vertex] = (middle + (number - (len(alike) - 1) / 2) * 1.6, _ROWS[row])
    return places


def _find_first(names: Sequence[str], kinds: Mapping[str, VertexKind]) -> tuple[int, int, str]:
    for rank, kind in enumerate((VertexKind.PCIE, VertexKind.CPU)):
        for name in names:
            if kinds[name] == kind:
                return (0, _number_of(name), name) if rank == 0 else (1, _number_of(name), name)
    return (9, 0, "")


_MOST_RINGS = 8
"""Rings that are drawn, for one row."""
_PITCH = 2.9
"""Distance of the centres of neighbouring rings, whose radii are 1."""
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#79706e")


def _draw_rings(axes: Any, rings: Sequence[tuple[str, ...]], nics: Collection[str], title: str = "") -> None:
    """Draw each ring, a walk over GPUs, as a circle of its own; the first eight of them.

    A ring closes with its first GPU, or begins and ends with one of `nics`, drawn above the circle.
    """
    for number, ring in enumerate(rings[:_MOST_RINGS]):
        centre = _PITCH * number
        places = _circle(sorted({stop for stop in ring if stop not in nics}, key=_number_of), centre)
        places |= _nics(ring, nics, centre)
        for source, target in pairwise(ring):
            arrow = {"arrowstyle": "-|>", "color": _COLOURS[number], "shrinkA": 7, "shrinkB": 7, "linewidth": 1.4}
            across = source in nics or target in nics
            arrow |= {"linestyle": "dashed", "linewidth": 1.0} if across else {}
            axes.annotate("", places[target], places[source], arrowprops=arrow)
        for stop, (x, y) in places.items():
            axes.text(x, y, stop if stop in nics else str(_number_of(stop)), ha="center", va="center", fontsize=8)
        order = " ".join(str(_number_of(stop)) for stop in ring if stop not in nics)
        axes.text(centre, -1.55, f"ring {number}: {order}", ha="center", va="center", fontsize=6.5)
    shown = min(len(rings), _MOST_RINGS)
    left = f" (first {shown} of {len(rings)} shown)" if shown < len(rings) else ""
    top = 2.0 if any(stop in nics for ring in rings for stop in ring) else 1.3
    axes.set(xlim=(-1.6, _PITCH * max(shown, 3) - 1.3), ylim=(-1.8, top), aspect="equal")
    axes.set_title(f"{title}{left}", fontsize=8)
    axes.set_axis_off()


def _nics(ring: Sequence[str], nics: Collection[str], centre: float) -> dict[str, tuple[float, float]]:
    """Return places of the NICs at a ring's ends, one above the circle, or two side by side."""
    ends = list(dict.fromkeys(stop for stop in (ring[0], ring[-1]) if stop in nics))
    return {nic: (centre + (number - (len(ends) - 1) / 2), 1.7) for number, nic in enumerate(ends)}


def _circle(gpus: Sequence[str], centre: float) -> dict[str, tuple[float, float]]:
    step = 2 * pi / len(gpus)
    return {gpu: (centre + sin(step * number), cos(step * number)) for number, gpu in enumerate(gpus)}


def _number_of(name: str) -> int:
    """Return the number at the end of a vertex's name; 0 where there is none."""
    return int(name[len(name.rstrip("0123456789")) :] or 0)


_MOST_NODES = 64
"""Nodes that a tree is drawn for, for legible numbers."""


def _draw_trees(axes: Any, trees: Sequence[Sequence[int | None]]) -> None:
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
