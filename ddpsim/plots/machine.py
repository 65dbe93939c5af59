"""A machine's graph: sockets on top, switches, devices, then what joins them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ddpsim.plots.figure import save
from ddpsim.plots.rings import draw_rings, number_of
from ddpsim.plots.trees import draw_trees
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
            draw_rings(figure.add_subplot(grid[row, column]), each, nics, title)
    if trees:
        draw_trees(figure.add_subplot(grid[-1, :]), trees)
    save(figure, path)


def _draw_node(axes: Any, links: Sequence[Any]) -> None:
    places = _places(links)
    strongest = max(link.bandwidth for link in links)
    drawn: set[str] = set()
    for link in links:
        (x0, y0), (x1, y1) = places[link.source], places[link.target]
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
    """Return where each vertex goes: devices in one row under their switch, switches over the middle of theirs."""
    kinds = {end.name: end.kind for link in links for end in link.ends()}
    vertices = sorted(kinds)
    devices = [v for v in vertices if kinds[v] not in _ROWS]
    above = {v: sorted(link.target for link in links if link.source == v and link.target in vertices) for v in devices}
    order = sorted(devices, key=lambda v: (_find_first(above[v], kinds), number_of(v), v))
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
                return (0, number_of(name), name) if rank == 0 else (1, number_of(name), name)
    return (9, 0, "")
