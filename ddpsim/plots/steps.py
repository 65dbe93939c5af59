"""Predicted steps with their bands, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ddpsim.plots.figure import MARKERS, label_decades, legend_below, save

Step = tuple[str, tuple[float, float, float]]
"""What is varied, as people write it, and the step in seconds with its 10th and 90th percentile."""
_COLUMNS = 3
"""Panels beside each other."""
_WIDTH = 0.5
"""Of the place of one value, what the lines' markers are spread over, so that those that coincide all show."""


def plot_steps(panels: Mapping[str, Mapping[str, Sequence[Step]]], path: str | Path, varied: str) -> None:
    """Draw steps with their 80 % bands over what is varied, panels by title, lines by label.

    Values stand at equal distances, numbers ascending, others in the order in which they first come; all panels share
    one vertical axis.

    Args:
        panels: title to label to steps.
        path: the PNG.
        varied: what the horizontal axis holds, `nodes`.
    """
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.4 * columns, 5.0 * rows), layout="constrained")
    shared: Any = None
    for number, (title, lines) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, number + 1, sharey=shared)
        shared = shared or axes
        values = in_order([value for steps in lines.values() for value, _ in steps])
        _draw(axes, lines, values)
        axes.set(yscale="log", xlabel=varied, ylabel="step (ms), 80 % band", title=title)
        axes.set_xticks(range(len(values)), values)
        label_decades(axes.yaxis)
        axes.grid(True, which="both", alpha=0.25)
        legend_below(axes)
    save(figure, path)


def in_order(values: Sequence[str]) -> list[str]:
    """Return the values that differ: ascending where all are numbers, else in the order in which they first come.

    >>> in_order(["2", "4", "1", "2"]), in_order(["default", "25", "1"])
    (['1', '2', '4'], ['default', '25', '1'])
    """
    found = list(dict.fromkeys(values))
    try:
        return sorted(found, key=float)
    except ValueError:
        return found


def _draw(axes: Any, lines: Mapping[str, Sequence[Step]], values: Sequence[str]) -> None:
    for number, (label, steps) in enumerate(lines.items()):
        aside = _WIDTH * ((number + 0.5) / len(lines) - 0.5)
        steps = sorted(steps, key=lambda step: values.index(step[0]))
        places = [values.index(value) + aside for value, _ in steps]
        middle, low, high = ([1e3 * times[part] for _, times in steps] for part in range(3))
        ends = [[m - a for m, a in zip(middle, low, strict=True)], [b - m for m, b in zip(middle, high, strict=True)]]
        style = {"marker": MARKERS[number % len(MARKERS)], "markersize": 5, "linewidth": 1.2, "capsize": 3}
        axes.errorbar(places, middle, yerr=ends, color=f"C{number % 10}", label=label, **style)
