"""Latency over bucket size, and predicted over measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ddpsim.plots.figure import save

Curve = Sequence[tuple[float, float]]
_COLUMNS = 3
_COLOURS = [f"C{number}" for number in range(10)]


def plot_caps(
    panels: Mapping[str, Mapping[str, Curve]],
    path: str | Path,
    defaults: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Draw iteration latency over bucket cap, panels by title, lines by label.

    Args:
        panels: title to label to (cap in MiB, iteration in seconds), ascending.
        path: the PNG; at most ten lines a panel.
        defaults: title to label to the iteration under torch's default; drawn as a dashed level.
    """
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.4 * columns, 4.6 * rows), layout="constrained")
    for number, (title, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, number + 1)
        for colour, (label, curve) in zip(_COLOURS, curves.items(), strict=False):
            caps, seconds = zip(*curve, strict=True)
            axes.plot(caps, [s * 1e3 for s in seconds], marker="o", markersize=3.5, color=colour, label=label)
            best = min(curve, key=lambda point: point[1])
            axes.plot([best[0]], [best[1] * 1e3], marker="*", markersize=12, color=colour)
            default = (defaults or {}).get(title, {}).get(label)
            if default is not None:
                axes.axhline(default * 1e3, color=colour, linestyle=":", linewidth=0.9)
        axes.set(xscale="log", yscale="log", xlabel="bucket cap (MiB)", ylabel="iteration (ms)", title=title)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="minor", labelsize=7)
        axes.grid(True, which="both", alpha=0.25)
        axes.legend(fontsize=8, title="star: lowest, dotted: torch's default", title_fontsize=7)
    save(figure, path)


def plot_sizes(curves: Mapping[str, Curve], path: str | Path) -> None:
    """Draw allreduce time over message size, both logarithmic; lines by label, of (bytes, microseconds)."""
    figure = Figure(figsize=(6.6, 5.0), layout="constrained")
    axes = figure.add_subplot()
    for label, curve in curves.items():
        sizes, times = zip(*sorted(curve), strict=True)
        measured = label.endswith("measured")
        axes.plot(sizes, times, marker="o" if measured else "", linestyle="" if measured else "-", label=label)
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
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
    save(figure, path)
