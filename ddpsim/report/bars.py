"""Bars of time as SVG whose lengths are shares of the page's width: the parts of each step, and the band of its end."""

from __future__ import annotations

from ddpsim.charts.model import StackedBar
from ddpsim.markup import Markup, SvgShape, call_macro, svg
from ddpsim.report.model import BarChart
from ddpsim.units import format_time


def draw(bars: BarChart) -> Markup:
    """Return the bars on one axis from 0, a legend above; a bar tells its numbers beside it and on hover."""
    longest_s = max(max(bar.high, bar.total) for bar in bars.bars)
    names = dict.fromkeys(name for bar in bars.bars for name, seconds in bar.parts if seconds > 0)
    keys = [(part_class(name), name) for name in names]
    return call_macro("parts.html", "bars", keys, [_row(bar, longest_s) for bar in bars.bars])


def part_class(name: str) -> str:
    """Return the style of a part: `part-exposed-communication`."""
    return f"part-{name.replace(' ', '-').lower()}"


def _row(bar: StackedBar, longest_s: float) -> tuple[str, str, Markup]:
    pieces, start_s = [], 0.0
    for name, seconds in bar.parts:
        if seconds > 0:
            at = {"x": _share(start_s, longest_s), "width": _share(seconds, longest_s), "y": 2, "height": 14}
            pieces.append(SvgShape("rect", {"class": part_class(name), **at}, title=f"{name} {format_time(seconds)}"))
        start_s += seconds
    if bar.low < bar.high:
        ends = {"x1": _share(bar.low, longest_s), "x2": _share(bar.high, longest_s), "y1": 20, "y2": 20}
        pieces.append(SvgShape("line", {"class": "reach", **ends}))
    band = f", 80 % band {format_time(bar.low)} to {format_time(bar.high)}" if bar.low < bar.high else ""
    said = f"{format_time(bar.total)}{band}"
    return bar.label, said, svg(pieces, f"{bar.label}: {said}", height=23)


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.3f}%"
