"""A machine's graph: sockets on top, switches, devices, then what joins them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ddpsim.plots.figure import save
from ddpsim.topology.graph import Topology

_ROWS = {"cpu": 4.0, "pcie": 3.0, "host_out": 3.0, "host_in": 1.0, "nvswitch": 0.9, "network": 0.0, "adapter": 1.0}
_LINKS = {"nvlink": "#54a24b", "pcie": "0.55", "host_bridge": "0.35", "socket": "#e45756", "nic": "#4c78a8"}
_MOST_DEVICES = 16


def plot_topology(
    topology: Topology, path: str | Path, rings: Mapping[str, Sequence[tuple[str, ...]]] | None = None
) -> None:
    """Draw each node template's graph: colour by kind of link, width by bandwidth.

    Args:
        topology: the machine.
        path: the PNG.
        rings: of templates by name, each a closed walk over GPUs; drawn under the graph, an order a row.
    """
    widest = max(min(len(g.template.gpus), _MOST_DEVICES) + len(g.template.nics) for g in topology.groups)
    figure = Figure(figsize=(max(6.5, 0.85 * widest) * len(topology.groups), 5.4), layout="constrained")
    for column, group in enumerate(topology.groups):
        axes = figure.add_subplot(1, len(topology.groups), column + 1)
        hidden = {gpu.name for gpu in group.template.gpus[_MOST_DEVICES:]}
        _draw_node(axes, [link for link in group.template.links if not {link.source, link.target} & hidden])
        title = f"{group.count} x {group.template.name}, fabric {topology.fabric.kind}"
        axes.set_title(f"{title} (first {_MOST_DEVICES} of {len(group.template.gpus)} shown)" if hidden else title)
        _draw_rings(axes, (rings or {}).get(group.template.name, ()))
        axes.set_axis_off()
    save(figure, path)


def _draw_node(axes: Any, links: Sequence[Any]) -> None:
    places = _places(links)
    strongest = max(link.bandwidth for link in links)
    drawn: set[str] = set()
    for link in links:
        (x0, y0), (x1, y1) = places[link.source], places[link.target]
        bend = 0.0 if y0 != y1 else 0.35
        label = f"{link.kind}, {link.bandwidth / 1e9:g} GB/s"
        axes.annotate(
            "", (x1, y1), (x0, y0),
            arrowprops={
                "arrowstyle": "-", "color": _LINKS.get(link.kind, "0.6"), "alpha": 0.8,
                "linewidth": 0.7 + 2.6 * (link.bandwidth / strongest) ** 0.5,
                "connectionstyle": f"arc3,rad={bend if x0 < x1 else -bend}",
            },
        )  # fmt: skip
        if label not in drawn:
            drawn.add(label)
            axes.plot([], [], color=_LINKS.get(link.kind, "0.6"), label=label)
    for vertex, (x, y) in places.items():
        box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "0.3"}
        axes.text(x, y, vertex, ha="center", va="center", fontsize=8, bbox=box)
    xs, ys = zip(*places.values(), strict=True)
    axes.set(xlim=(min(xs) - 0.7, max(xs) + 0.7), ylim=(min(ys) - 1.0, max(ys) + 0.5))
    axes.legend(fontsize=7, loc="lower left", ncols=3, frameon=False)


def _draw_rings(axes: Any, rings: Sequence[tuple[str, ...]]) -> None:
    lines = [
        f"ring {number}: " + " > ".join(gpu.removeprefix("gpu") for gpu in ring) for number, ring in enumerate(rings)
    ]
    axes.text(
        0.99, 0.01, "\n".join(lines), transform=axes.transAxes, ha="right", va="bottom", fontsize=8, family="monospace"
    )


def _places(links: Sequence[Any]) -> dict[str, tuple[float, float]]:
    """Return where each vertex goes: devices in one row under their switch, switches over the middle of theirs."""
    vertices = sorted({end for link in links for end in (link.source, link.target)})
    devices = [v for v in vertices if v.rstrip("0123456789") not in _ROWS]
    above = {v: sorted(link.target for link in links if link.source == v and link.target in vertices) for v in devices}
    order = sorted(devices, key=lambda v: (_first(above[v], ("pcie", "cpu")), _number(v), v))
    places = {v: (float(n), 2.0) for n, v in enumerate(order)}
    for kind in ("pcie", "cpu"):
        for vertex in (v for v in vertices if v.rstrip("0123456789") == kind):
            inward = (link.source for link in links if link.target == vertex and link.kind != "socket")
            below = [places[source][0] for source in inward if source in places]
            places[vertex] = (sum(below) / len(below) if below else 0.0, _ROWS[kind])
    middle = (len(order) - 1) / 2
    for row in ("nvswitch", "network", "adapter", "host_out", "host_in"):
        alike = [v for v in vertices if v.rstrip("0123456789") == row]
        for number, vertex in enumerate(alike):
            places[vertex] = (middle + (number - (len(alike) - 1) / 2) * 1.6, _ROWS[row])
    return places


def _first(names: Sequence[str], kinds: tuple[str, ...]) -> tuple[int, int, str]:
    for rank, kind in enumerate(kinds):
        for name in names:
            if name.rstrip("0123456789") == kind:
                return (0, _number(name), name) if rank == 0 else (1, _number(name), name)
    return (9, 0, "")


def _number(name: str) -> int:
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits) if digits else 0
