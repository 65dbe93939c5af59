"""Panels of lines, bars and boxes: figures as a paper drew them, with bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from matplotlib.figure import Figure

from ddpsim.plots.figure import MARKERS, legend_below, save

Scale = Literal["linear", "log", "log2"]

_LEGEND_AT = -0.2
"""Top of a panel's legend below its axes, in their heights: under a label, or tick labels of two lines."""
STAR = {"marker": "*", "markersize": 13, "markeredgecolor": "black", "markeredgewidth": 0.7, "color": "gold"}
"""Of what the paper reports."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line is values over an axis.

    Attributes:
        xs, ys: of its points.
        band: lower and upper ends of `ys`; None draws no band.
        reported: whether these are the paper's figures, drawn as stars without a line.
    """

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    reported: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack is one bar of parts on top of each other.

    Attributes:
        label: under the bar.
        parts: (name, height), from below.
        band: lower and upper end of its whole height.
        reported: the paper's height of the whole bar; None where it states none.
    """

    label: str
    parts: Sequence[tuple[str, float]]
    band: tuple[float, float] | None = None
    reported: float | None = None


@dataclass(frozen=True, slots=True)
class Box:
    """A box is the spread of one value over its label.

    Attributes:
        spread: low end, 25 %, median, 75 %, high end.
        best: whether a star marks it: the paper's.
    """

    label: str
    spread: tuple[float, float, float, float, float]
    best: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel is one picture of a figure: lines, or stacks, or boxes.

    Attributes:
        ticks: (place, label) along the horizontal axis; none are matplotlib's own.
    """

    title: str
    xlabel: str
    ylabel: str
    lines: Sequence[Line] = ()
    stacks: Sequence[Stack] = ()
    boxes: Sequence[Box] = ()
    xscale: Scale = "linear"
    yscale: Scale = "linear"
    ticks: Sequence[tuple[float, str]] = ()


def plot_panels(panels: Sequence[Panel], path: str | Path, columns: int = 2) -> None:
    """Draw the panels of one figure, so many beside each other, as PNG."""
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(5.0 * columns, 4.2 * rows), layout="constrained")
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw(axes, panel)
    save(figure, path)


def _draw(axes: Any, panel: Panel) -> None:
    for number, line in enumerate(panel.lines):
        _draw_line(axes, line, number)
    if panel.stacks:
        _draw_stacks(axes, panel.stacks)
    if panel.boxes:
        _draw_boxes(axes, panel.boxes)
    axes.set(title=panel.title, xlabel=panel.xlabel, ylabel=panel.ylabel)
    _scaled(axes, "x", panel.xscale)
    _scaled(axes, "y", panel.yscale)
    if panel.ticks:
        places, labels = zip(*panel.ticks, strict=True)
        axes.set_xticks(places, labels)
        axes.minorticks_off()
    axes.grid(True, axis="y" if panel.stacks or panel.boxes else "both", alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        legend_below(axes, ncols=2, bbox_to_anchor=(0.5, _LEGEND_AT))


def _scaled(axes: Any, axis: str, scale: Scale) -> None:
    setter = getattr(axes, f"set_{axis}scale")
    if scale == "linear":
        if axis == "y":
            axes.set_ylim(bottom=0)
    else:
        setter("log", base=2 if scale == "log2" else 10)


def _draw_line(axes: Any, line: Line, number: int) -> None:
    colour = f"C{number % 10}"
    if line.reported:
        axes.plot(line.xs, line.ys, linestyle="", label=line.label, zorder=5, **STAR)
        return
    marker = MARKERS[number % len(MARKERS)] if len(line.xs) < 40 else ""
    axes.plot(line.xs, line.ys, color=colour, label=line.label, marker=marker, markersize=4.5, linewidth=1.4)
    if line.band is not None:
        axes.fill_between(line.xs, *line.band, color=colour, alpha=0.15, linewidth=0)


def _draw_stacks(axes: Any, stacks: Sequence[Stack]) -> None:
    names = list(dict.fromkeys(name for stack in stacks for name, _ in stack.parts))
    below = [0.0] * len(stacks)
    for number, name in enumerate(names):
        heights = [dict(stack.parts).get(name, 0.0) for stack in stacks]
        axes.bar(range(len(stacks)), heights, 0.6, bottom=below, color=f"C{number % 10}", label=name)
        below = [base + height for base, height in zip(below, heights, strict=True)]
    for place, (stack, whole) in enumerate(zip(stacks, below, strict=True)):
        if stack.band is not None:
            low, high = stack.band
            ends = [[max(0.0, whole - low)], [max(0.0, high - whole)]]
            axes.errorbar([place], [whole], yerr=ends, color="black", capsize=4, linewidth=1.2)
    stars = [(place, stack.reported) for place, stack in enumerate(stacks) if stack.reported is not None]
    if stars:
        axes.plot(*zip(*stars, strict=True), linestyle="", label="the paper's", zorder=5, **STAR)
    axes.set_xticks(range(len(stacks)), [stack.label for stack in stacks])


def _draw_boxes(axes: Any, boxes: Sequence[Box]) -> None:
    keys = ("whislo", "q1", "med", "q3", "whishi")
    stats = [dict(zip(keys, box.spread, strict=True)) | {"fliers": [], "label": box.label} for box in boxes]
    middle = {"color": "C0", "linewidth": 2}
    axes.bxp(stats, positions=range(len(boxes)), showfliers=False, widths=0.5, medianprops=middle)
    axes.set_xticks(range(len(boxes)), [box.label for box in boxes])
    best = [(place, box.spread[2]) for place, box in enumerate(boxes) if box.best]
    if best:
        axes.plot(*zip(*best, strict=True), linestyle="", label="the paper's best", zorder=5, **STAR)
