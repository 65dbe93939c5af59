"""Signed errors of predictions over what was measured, with the noise of the measurement."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ddpsim.plots.figure import MARKERS, label_decades, legend_beside, save

BANDS = (0.05, 0.02)
"""Half widths that are shaded."""


def plot_errors(
    points: Mapping[str, Sequence[tuple[float, float, float | None]]], path: str | Path, unit: str = "iteration (ms)"
) -> None:
    """Draw the error of each prediction in percent over the measured time, a colour a group.

    Args:
        points: label to (measured, predicted, noise): seconds, and half the range of repeated runs over their mean;
            None where there is a single one.
        path: the PNG.
        unit: what the horizontal axis holds; values are drawn in milliseconds.
    """
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for band, shade in zip(BANDS, ("0.93", "0.85"), strict=True):
        axes.axhspan(-100 * band, 100 * band, color=shade, label=f"± {100 * band:.0f} %")
    axes.axhline(0, color="0.4", linewidth=0.8)
    for number, (label, group) in enumerate(points.items()):
        axes.errorbar(
            [measured * 1e3 for measured, _, _ in group],
            [100 * (predicted / measured - 1) for measured, predicted, _ in group],
            yerr=[math.nan if noise is None else 100 * noise for _, _, noise in group],
            fmt=MARKERS[number % len(MARKERS)],
            markersize=4,
            elinewidth=0.8,
            color=f"C{number % 10}",
            label=label,
        )
    axes.set(xlabel=f"measured {unit}", ylabel="predicted / measured - 1 (%)")
    times = [measured for group in points.values() for measured, _, _ in group]
    if max(times) > 5 * min(times):
        axes.set(xscale="log")
        label_decades(axes.xaxis)
    axes.grid(True, which="both", alpha=0.25)
    legend_beside(axes)
    save(figure, path)
