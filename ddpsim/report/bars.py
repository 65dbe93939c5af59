"""Bars of time as SVG whose lengths are shares of the page's width: the parts of each step, and the band of its end."""

from __future__ import annotations

from ddpsim.markup import Markup, element
from ddpsim.report.model import BarChart, StackedBar
from ddpsim.units import format_time


def draw(bars: BarChart) -> Markup:
    """Return the bars on one axis from 0, a legend above; a bar tells its numbers beside it and on hover."""
    longest = max(max(bar.high_s, bar.total_s) for bar in bars.bars)
    names = list(dict.fromkeys(name for bar in bars.bars for name, seconds in bar.parts if seconds > 0))
    keys = (element("li", element("span", class_=f"key {part_class(name)}"), name) for name in names)
    rows = (_row(bar, longest) for bar in bars.bars)
    return element("div", element("ul", *keys, class_="legend"), *rows, class_="bars")


def part_class(name: str) -> str:
    """Return the style of a part: `part-exposed-communication`."""
    return f"part-{name.replace(' ', '-').lower()}"


def _row(bar: StackedBar, longest_s: float) -> Markup:
    pieces, start_s = [], 0.0
    for name, seconds in bar.parts:
        if seconds > 0:
            told = element("title", f"{name} {format_time(seconds)}")
            at = {"x": _share(start_s, longest_s), "width": _share(seconds, longest_s)}
            pieces.append(element("rect", told, y=2, height=14, class_=part_class(name), **at))
        start_s += seconds
    if bar.low_s < bar.high_s:
        ends = {"x1": _share(bar.low_s, longest_s), "x2": _share(bar.high_s, longest_s)}
        pieces.append(element("line", y1=20, y2=20, class_="reach", **ends))
    band = f", 80 % band {format_time(bar.low_s)} to {format_time(bar.high_s)}" if bar.low_s < bar.high_s else ""
    said = f"{format_time(bar.total_s)}{band}"
    picture = element("svg", *pieces, height=23, role="img", aria_label=f"{bar.label}: {said}")
    return element("p", element("span", bar.label), element("span", said, class_="said"), picture, class_="bar")


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.3f}%"
