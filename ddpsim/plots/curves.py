"""Latency over bucket size, and predicted over measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ddpsim.plots.figure import label_decades, save

Curve = Sequence[tuple[float, float]]
_COLUMNS = 3
_MARKERS = "os^Dv<>Pph"
_WIDEST, _THINNEST = 5.0, 1.0


@dataclass(frozen=True, slots=True)
class CapCurve:
    """Latency over bucket cap of one machine and node count.

    Attributes:
        sweep: (cap in MiB, iteration in seconds), ascending.
        default_s: the iteration under torch's default.
        advised: where what is advised lies, in the same units.
    """

    sweep: Curve
    default_s: float
    advised: tuple[float, float]


def plot_caps(panels: Mapping[str, Mapping[str, CapCurve]], path: str | Path) -> None:
    """Draw iteration latency over bucket cap, panels by title, lines by label.

    Lines grow thinner from first to last and lie over each other in that order, so that those that coincide show as one
    with edges of several colours.

    Args:
        panels: title to label to curve; at most ten lines a panel.
        path: the PNG.
    """
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.4 * columns, 4.6 * rows), layout="constrained")
    for number, (title, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw_caps(axes, curves)
        axes.set(xscale="log", yscale="log", xlabel="bucket cap (MiB)", ylabel="iteration (ms)", title=title)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="minor", labelsize=7)
        axes.grid(True, which="both", alpha=0.25)
        meaning = "star: advised (a list at its mean bucket)\ndotted: torch's default"
        axes.legend(fontsize=8, title=meaning, title_fontsize=7)
    save(figure, path)


def _draw_caps(axes: Any, curves: Mapping[str, CapCurve]) -> None:
    step = (_WIDEST - _THINNEST) / max(len(curves) - 1, 1)
    for number, (label, curve) in enumerate(curves.items()):
        colour, width = f"C{number % 10}", _WIDEST - step * number if len(curves) > 1 else 1.5
        caps, milliseconds = zip(*((cap, seconds * 1e3) for cap, seconds in curve.sweep), strict=True)
        style = {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 3 + width, "linewidth": width}
        axes.plot(caps, milliseconds, color=colour, label=label, zorder=2 + 0.01 * number, **style)
        axes.axhline(curve.default_s * 1e3, color=colour, linestyle=":", linewidth=max(1.0, width / 2), zorder=1.5)
        cap, seconds = curve.advised
        star = {"marker": "*", "markersize": 11 + 2 * width, "markeredgecolor": "black", "markeredgewidth": 0.7}
        axes.plot([cap], [seconds * 1e3], color=colour, zorder=4 + number, **star)


def plot_sizes(curves: Mapping[str, Curve], path: str | Path) -> None:
    """Draw allreduce time over message size, both logarithmic; lines by label, of (bytes, microseconds).

    A label that ends in `measured` is points; labels that differ in the last word only have one colour.
    """
    figure = Figure(figsize=(6.6, 5.0), layout="constrained")
    axes = figure.add_subplot()
    colours: dict[str, str] = {}
    for label, curve in curves.items():
        sizes, times = zip(*sorted(curve), strict=True)
        measured = label.endswith("measured")
        colour = colours.setdefault(label.rpartition(" ")[0] or label, f"C{len(colours) % 10}")
        marker, line = ("o", "") if measured else ("", "-")
        axes.plot(sizes, times, color=colour, marker=marker, markersize=3.5, linestyle=line, linewidth=1.2, label=label)
    axes.set(xlabel="message size (bytes)", ylabel="time (us)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
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
    figure = Figure(figsize=(5.6, 5.4), layout="constrained")
    axes = figure.add_subplot()
    values = [value * 1e3 for group in points.values() for pair in group for value in pair]
    low, high = min(values) * 0.9, max(values) * 1.1
    ends = [low, high]
    axes.fill_between(ends, [0.95 * v for v in ends], [1.05 * v for v in ends], color="0.85", label="± 5 %")
    axes.plot(ends, ends, color="0.4", linewidth=0.8)
    for number, (label, group) in enumerate(points.items()):
        axes.scatter(
            [m * 1e3 for m, _ in group], [p * 1e3 for _, p in group], s=22, color=f"C{number % 10}", label=label
        )
    axes.set(xlabel=f"measured {unit}", ylabel=f"predicted {unit}", xlim=ends, ylim=ends)
    if high / max(low, 1e-12) > 5:
        axes.set(xscale="log", yscale="log")
        label_decades(axes.xaxis)
        label_decades(axes.yaxis)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
    save(figure, path)
