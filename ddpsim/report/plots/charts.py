"""Charts drawn by matplotlib: as panels of one PNG (`save_charts`), or each as SVG inside a page (`draw_svg`).

Both call `_draw`, which draws a chart of `ddpsim.report.charts.model` by the style of its lines (`_LINES`), and then
`_end_axes`, once everything that shares an axis is drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

from matplotlib.figure import Figure

from ddpsim.report.charts.model import Axis, Chart, ChartLine, Style
from ddpsim.report.plots.figure import MARKERS, label_logarithms, legend_below, legend_beside, save, svg_of

_STAR = {"marker": "*", "markersize": 14, "markeredgecolor": "black", "markeredgewidth": 0.7, "linestyle": ""}
_REPORTED = {**_STAR, "markersize": 13, "color": "gold", "zorder": 5}
"""Style of values that others report, and of the best of several boxes."""
_GREY = "0.4"
_WIDEST_IN_FULL = 2000
"""Ratio of the ends of a logarithmic axis up to which 2 and 5 of each power of ten are labelled too."""
_LONG = 40
"""Characters of all labels of an axis from which they are written small, and of a line of a title."""
_MOST_LABELS = 8
"""Labels of an axis of numbers at most; of more, every n-th is written."""
_PAGE_INCHES = (5.3, 3.5)
"""Of a chart in a page, which is scaled to the width that it has there."""


@dataclass(frozen=True, slots=True)
class PictureLayout:
    """How charts stand in one picture.

    Attributes:
        width, height: of a chart, in inches.
        columns: charts beside each other.
        share_y: whether all have one vertical axis.
        legend: where each chart's stands.
        legend_columns: of a legend below.
    """

    width: float = 5.4
    height: float = 5.0
    columns: int = 3
    share_y: bool = False
    legend: Literal["below", "beside"] = "below"
    legend_columns: int = 1


def save_charts(charts: Sequence[Chart], path: str | Path, layout: PictureLayout | None = None) -> None:
    """Write charts as one PNG."""
    layout = layout or PictureLayout()
    columns = min(len(charts), layout.columns)
    rows = math.ceil(len(charts) / columns)
    figure = Figure(figsize=(layout.width * columns, layout.height * rows), layout="constrained")
    panels: list[Any] = []
    for number, chart in enumerate(charts, start=1):
        panels.append(
            figure.add_subplot(rows, columns, number, sharey=panels[0] if panels and layout.share_y else None)
        )
        _draw(panels[-1], chart)
        title = wrap(chart.title, _LONG, break_long_words=False, break_on_hyphens=False)
        # A model's name is one word, which may be longer than its panel is wide.
        size = "medium" if any(len(line) > _LONG for line in title) else "large"
        panels[-1].set_title("\n".join(title), fontsize=size)
    # An axis ends where the data of all panels that share it ends: these must be drawn before.
    for axes, chart in zip(panels, charts, strict=True):
        _end_axes(axes, chart)
        _legend(axes, chart, layout)
    save(figure, path)


def draw_svg(chart: Chart) -> str:
    """Return a chart as SVG in colours of a page's style sheet, for a page that has its title and legend.

    Points show their numbers on hover.
    """
    figure = Figure(figsize=_PAGE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    _draw(axes, chart)
    _end_axes(axes, chart)
    return svg_of(figure, f"{chart.title}: {chart.y.label} over {chart.x.label}")


def _end_axes(axes: Any, chart: Chart) -> None:
    _limit(axes, "x", chart.x)
    _limit(axes, "y", chart.y)
    _label(axes.xaxis, chart.x, axes.get_xlim())
    _label(axes.yaxis, chart.y, axes.get_ylim())
    if chart.x.is_log and chart.x.ticks:
        axes.minorticks_off()


def _draw(axes: Any, chart: Chart) -> None:
    for line in chart.lines:
        _LINES[line.style](axes, chart, line)
    if chart.bars:
        _draw_bars(axes, chart)
    if chart.boxes:
        _draw_boxes(axes, chart)
    for axis, rule in ((chart.y, axes.axhline), (chart.x, axes.axvline)):
        if axis.level is not None:
            rule(axis.level, color=_GREY, linestyle=":", linewidth=1.2, zorder=1.5)
    # A name with two dollars would be typeset as a formula.
    axes.set_xlabel(chart.x.label, parse_math=False)
    axes.set_ylabel(chart.y.label, parse_math=False)
    for side, axis in (("x", chart.x), ("y", chart.y)):
        if axis.is_log:
            getattr(axes, f"set_{side}scale")("log", base=2 if axis.scale == "log2" else 10)
        _label_ticks(axes, side, axis)
    axes.grid(True, which="both", axis="y" if chart.bars or chart.boxes else "both", alpha=0.25)


def _limit(axes: Any, side: str, axis: Axis) -> None:
    """End an axis at its limits; one of labels beside each other half a place beyond the first and the last."""
    low, high = axis.low, axis.high
    if axis.ticks and not axis.is_log:
        low, high = axis.ticks[0][0] - 0.5, axis.ticks[-1][0] + 0.5
    # Setting a limit, even None, turns autoscaling off for the other end: not called without one.
    if low is not None or high is not None:
        getattr(axes, f"set_{side}lim")(low, high)


def _label_ticks(axes: Any, side: str, axis: Axis) -> None:
    if axis.ticks:
        places, labels = zip(*axis.ticks, strict=True)
        if len(labels) > _MOST_LABELS and labels[-1][-1:].isdigit():
            every = math.ceil(len(labels) / _MOST_LABELS)
            places, labels = places[::every], labels[::every]
        size = "x-small" if sum(map(len, labels)) > _LONG else "medium"
        getattr(axes, f"set_{side}ticks")(places, labels, fontsize=size, parse_math=False)


def _label(axis: Any, of: Axis, ends: tuple[float, float]) -> None:
    if of.scale == "log" and not of.ticks and ends[1] < _WIDEST_IN_FULL * ends[0]:
        label_logarithms(axis, *ends)


def _legend(axes: Any, chart: Chart, layout: PictureLayout) -> None:
    if not axes.get_legend_handles_labels()[0]:
        return
    title = {"title": chart.key, "title_fontsize": 7} if chart.key else {}
    if layout.legend == "beside":
        legend_beside(axes, **title)
    else:
        lines = chart.x.label.count("\n") + 1 + max((text.count("\n") for _, text in chart.x.ticks), default=0)
        lines += max((bar.label.count("\n") for bar in chart.bars), default=0)
        legend_below(axes, ncols=layout.legend_columns, lines=lines, **title)


def _style(chart: Chart, line: ChartLine) -> dict[str, Any]:
    return {
        "color": f"C{chart.colour(line) % 10}",
        "marker": "" if line.style == "curve" else MARKERS[chart.marker(line) % len(MARKERS)],
        "markersize": 5,
        "linewidth": 1.3,
        "linestyle": "" if line.style == "dots" else "-",
        "markerfacecolor": "none" if line.style == "dots" else None,
        "zorder": 2.1 if line.style == "dots" else 2,
    }


def _draw_line(axes: Any, chart: Chart, line: ChartLine) -> None:
    places, values, style = chart.places(line), [point.y for point in line.points], _style(chart, line)
    banded = [point.banded or (math.nan, math.nan) for point in line.points]
    is_banded = any(point.banded is not None for point in line.points)
    if is_banded and (line.whiskers or line.style == "dots"):
        whiskers = _measure_whiskers(values, banded)
        drawn = axes.errorbar(places, values, yerr=whiskers, label=line.label, capsize=3, elinewidth=1, **style)[0]
    else:
        [drawn] = axes.plot(places, values, label=line.label, **style)
        if is_banded:
            axes.fill_between(places, *zip(*banded, strict=True), color=style["color"], alpha=0.15, linewidth=0)
    drawn.set_gid(_hover_texts(chart, line))


def _hover_texts(chart: Chart, line: ChartLine) -> str:
    """Return the texts that `svg_of` shows on hover, one a point, as JSON in the artist's `gid`."""
    x, y = chart.x, chart.y
    texts = []
    for point in line.points:
        band = "" if point.banded is None else " ({:.4g} to {:.4g})".format(*point.banded)
        name = point.label or line.label
        texts.append(f"{name}: {x.label} {x.text(point.x)}, {y.label} {y.text(point.y)}{band}")
    return json.dumps(texts)


def _measure_whiskers(values: Sequence[float], banded: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Return how far bands go below and above values; what has none has no whisker either."""
    ends = [(value - low, high - value) for value, (low, high) in zip(values, banded, strict=True)]
    return [[end if math.isnan(end) else max(0.0, end) for end in side] for side in zip(*ends, strict=True)]


def _draw_stars(axes: Any, chart: Chart, line: ChartLine) -> None:
    places, values = chart.places(line), [point.y for point in line.points]
    if not line.of:
        axes.plot(places, values, label=line.label, gid=_hover_texts(chart, line), **_REPORTED)
        return
    colour = f"C{chart.colour(line) % 10}"
    banded = [point.banded or (point.y, point.y) for point in line.points]
    above = 4 + chart.colour(line)
    drawn = axes.errorbar(places, values, yerr=_measure_whiskers(values, banded), color=colour, zorder=above, **_STAR)
    drawn[0].set_gid(_hover_texts(chart, line))


def _draw_bounds(axes: Any, chart: Chart, line: ChartLine) -> None:
    half = chart.width / 2
    ends = ([point.x + side * half for point in line.points] for side in (-1, 1))
    axes.hlines([point.y for point in line.points], *ends, color="grey", linestyle="--", label=line.label)


def _draw_band(axes: Any, chart: Chart, line: ChartLine) -> None:
    places = chart.places(line)
    banded = [point.banded or (point.y, point.y) for point in line.points]
    bands = [each for each in chart.lines if each.style == "band"]
    # Several bands lie over each other, each darker than the one before; one alone is in the middle.
    shade = str(max(0.75, 0.92 - 0.12 * bands.index(line)) if bands[1:] else 0.85)
    axes.fill_between(places, *zip(*banded, strict=True), color=shade, label=line.label, zorder=0.5, linewidth=0)
    axes.plot(places, [point.y for point in line.points], color=_GREY, linewidth=0.8)


_LINES: Mapping[Style, Callable[[Any, Chart, ChartLine], None]] = {
    "line": _draw_line, "curve": _draw_line, "dots": _draw_line, "star": _draw_stars, "bound": _draw_bounds,
    "band": _draw_band,
}  # fmt: skip


def _draw_bars(axes: Any, chart: Chart) -> None:
    bars = chart.bars
    below = [0.0] * len(bars)
    # Stacked part by part over all bars, not bar by bar: matplotlib takes one call, and one legend entry, a part.
    for number, name in enumerate(dict.fromkeys(name for bar in bars for name, _ in bar.parts)):
        heights = [dict(bar.parts).get(name, 0.0) for bar in bars]
        axes.bar(range(len(bars)), heights, 0.6, bottom=below, color=f"C{number % 10}", label=name)
        below = [base + height for base, height in zip(below, heights, strict=True)]
    for place, bar in enumerate(bars):
        if bar.low < bar.high:
            ends = _measure_whiskers([bar.total], [(bar.low, bar.high)])
            axes.errorbar([place], [bar.total], yerr=ends, color="black", capsize=4, linewidth=1.2)
    stars = [(place, bar.reported) for place, bar in enumerate(bars) if bar.reported is not None]
    if stars:
        axes.plot(*zip(*stars, strict=True), label="reported", **_REPORTED)
    axes.set_xticks(range(len(bars)), [bar.label for bar in bars])


def _draw_boxes(axes: Any, chart: Chart) -> None:
    keys = ("whislo", "q1", "med", "q3", "whishi")
    stats = [dict(zip(keys, box.spread, strict=True)) | {"fliers": [], "label": box.label} for box in chart.boxes]
    middle = {"color": "C0", "linewidth": 2}
    axes.bxp(stats, positions=range(len(stats)), showfliers=False, widths=0.5, medianprops=middle)
    axes.set_xticks(range(len(stats)), [box.label for box in chart.boxes])
    best = [(place, box.spread[2]) for place, box in enumerate(chart.boxes) if box.best]
    if best:
        axes.plot(*zip(*best, strict=True), label="the best reported", **_REPORTED)
