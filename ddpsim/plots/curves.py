"""Latency over bucket size, and predicted over measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ddpsim.dataclass import dataclass
from ddpsim.plots.figure import MARKERS, label_decades, legend_below, legend_beside, save

Curve = Sequence[tuple[float, float]]
_COLUMNS = 3
"""Panels beside each other."""
_APART = 1.07
"""Between the markers of neighbouring lines at one cap, as a factor."""


@dataclass(frozen=True, slots=True)
class CapCurve:
    """A curve is the iteration over the bucket cap, of one machine and node count.

    Attributes:
        sweep: (cap in MiB, iteration in seconds), ascending.
        default_s: the iteration under torch's default.
        advised: where what is advised lies, in the same units.
    """

    sweep: Curve
    default_s: float
    advised: tuple[float, float]


def plot_caps(panels: Mapping[str, Mapping[str, CapCurve]], path: str | Path) -> None:
    """Draw iteration latency over torch's default's against bucket cap, panels by title, lines by label.

    All panels share one vertical axis. Markers of one cap stand beside each other, so that those that coincide all
    show; the legends give what is 1.

    Args:
        panels: title to label to curve; at most ten lines a panel.
        path: the PNG.
    """
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.4 * columns, 5.0 * rows), layout="constrained")
    shared: Any = None
    for number, (title, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, number + 1, sharey=shared)
        shared = shared or axes
        _draw_caps(axes, curves)
        axes.set(xscale="log", xlabel="bucket cap (MiB)", ylabel="iteration / torch's default's", title=title)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(True, which="both", alpha=0.25)
        legend_below(axes, title="star: advised (a list at its mean bucket)", title_fontsize=7)
    save(figure, path)


def _draw_caps(axes: Any, curves: Mapping[str, CapCurve]) -> None:
    axes.axhline(1.0, color="0.4", linestyle=":", linewidth=1.2, zorder=1.5)
    for number, (label, curve) in enumerate(curves.items()):
        colour, aside = f"C{number % 10}", _APART ** (number - (len(curves) - 1) / 2)
        caps, ratios = zip(*((cap * aside, seconds / curve.default_s) for cap, seconds in curve.sweep), strict=True)
        style = {"marker": MARKERS[number % len(MARKERS)], "markersize": 5, "linewidth": 1.3}
        default = f"{label}: default {curve.default_s * 1e3:.4g} ms"
        axes.plot(caps, ratios, color=colour, label=default, zorder=2 + 0.01 * number, **style)
        cap, seconds = curve.advised
        star = {"marker": "*", "markersize": 14, "markeredgecolor": "black", "markeredgewidth": 0.7}
        axes.plot([cap * aside], [seconds / curve.default_s], color=colour, zorder=4 + number, **star)


def plot_sizes(curves: Mapping[str, Curve], path: str | Path) -> None:
    """Draw allreduce time over message size, both logarithmic; lines by label, of (bytes, microseconds).

    A label that ends in `measured` is points; labels that differ in the last word only have one colour.
    """
    figure = Figure(figsize=(8.4, 5.0), layout="constrained")
    axes = figure.add_subplot()
    colours: dict[str, str] = {}
    for label, curve in curves.items():
        sizes, times = zip(*sorted(curve), strict=True)
        measured = label.endswith("measured")
        colour = colours.setdefault(label.rpartition(" ")[0] or label, f"C{len(colours) % 10}")
        marker, line = (MARKERS[(len(colours) - 1) % len(MARKERS)], "") if measured else ("", "-")
        axes.plot(sizes, times, color=colour, marker=marker, markersize=3.5, linestyle=line, linewidth=1.2, label=label)
    axes.set(xlabel="message size (bytes)", ylabel="time (us)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(True, which="both", alpha=0.25)
    legend_beside(axes)
    save(figure, path)


def plot_validation(
    points: Mapping[str, Sequence[tuple[float, float]]], path: str | Path, unit: str = "iteration (ms)"
) -> None:
    """Draw predicted over measured with a band of 5 %, a colour a group.

    Args:
        points: label to (measured, predicted) in seconds.
        path: the PNG.
        unit: what the axes hold; values are drawn in milliseconds.
    """
    figure = Figure(figsize=(7.4, 5.4), layout="constrained")
    axes = figure.add_subplot()
    values = [value * 1e3 for group in points.values() for pair in group for value in pair]
    low, high = min(values) * 0.9, max(values) * 1.1
    ends = [low, high]
    axes.fill_between(ends, [0.95 * v for v in ends], [1.05 * v for v in ends], color="0.85", label="± 5 %")
    axes.plot(ends, ends, color="0.4", linewidth=0.8)
    for number, (label, group) in enumerate(points.items()):
        style: dict[str, Any] = {"s": 26, "marker": MARKERS[number % len(MARKERS)], "facecolors": "none"}
        pairs = [m * 1e3 for m, _ in group], [p * 1e3 for _, p in group]
        axes.scatter(*pairs, edgecolors=f"C{number % 10}", label=label, **style)
    axes.set(xlabel=f"measured {unit}", ylabel=f"predicted {unit}", xlim=ends, ylim=ends)
    if high / max(low, 1e-12) > 5:
        axes.set(xscale="log", yscale="log")
        label_decades(axes.xaxis)
        label_decades(axes.yaxis)
    axes.grid(True, which="both", alpha=0.25)
    legend_beside(axes)
    save(figure, path)
