"""Charts as SVG inside the page: curves with their bands, read without a script; points tell their numbers on hover."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from ddpsim.dataclass import dataclass
from ddpsim.markup import Markup, element
from ddpsim.report.model import Chart, ChartLine, ChartPoint

WIDTH, HEIGHT = 380, 250
"""Of a chart in units that are pixels on a phone."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 10, 10, 40
_COLOURS = 8
"""Colours of lines that the style sheet has, `c0` to `c7`."""


@dataclass(frozen=True, slots=True)
class _Scales:
    """Where values stand on the drawing."""

    across: Callable[[float], float]
    up: Callable[[float], float]


def draw(chart: Chart) -> Markup:
    """Return a chart with its axes and legend as one figure."""
    points = [point for line in chart.lines for point in line.points]
    x_ticks, y_ticks = _x_ticks(chart, points), _y_ticks(chart, points)
    scales = _Scales(_across(chart, points, x_ticks), _up(y_ticks))
    colours = _colours(chart.lines)
    drawn = [*_axes(chart, scales, x_ticks, y_ticks)]
    for line in chart.lines:
        drawn += [_band(line, scales, colours[line.label])] if line.style == "line" else []
    for line in sorted(chart.lines, key=lambda line: line.style != "line"):
        drawn += _line(chart, line, scales, colours[line.label])
    title = f"{chart.title}: {chart.y} over {chart.x}"
    picture = element("svg", *drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title)
    return element("figure", element("figcaption", chart.title), picture, _legend(chart.lines, colours))


def _colours(lines: Sequence[ChartLine]) -> dict[str, str]:
    """Return a class a line; what is advised has the colour of the line it is of."""
    owners = list(dict.fromkeys(line.of or line.label for line in lines))
    return {line.label: f"c{owners.index(line.of or line.label) % _COLOURS}" for line in lines}


def _x_ticks(chart: Chart, points: Sequence[ChartPoint]) -> list[tuple[float, str]]:
    if chart.ticks:
        return [(float(number), text) for number, text in enumerate(chart.ticks)]
    low, high = min(p.x for p in points), max(p.x for p in points)
    if chart.log_x:
        return [(value, f"{value:g}") for value in _decades(low, high)]
    return [(value, f"{value:g}") for value in _round_steps(low, high)]


def _y_ticks(chart: Chart, points: Sequence[ChartPoint]) -> list[float]:
    level = [] if chart.level is None else [chart.level]
    values = [v for p in points for v in (p.y, p.low, p.high) if v is not None] + level
    return _round_steps(min(values), max(values))


def _decades(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 of each power of ten between the ends; powers alone where those are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(powers) <= 3 else (1,)
    return [digit * 10.0**power for power in powers for digit in digits if low <= digit * 10.0**power <= high]


def _round_steps(low: float, high: float) -> list[float]:
    """Return about five round numbers from below `low` to above `high`."""
    spread = high - low or abs(high) * 0.1 or 1.0
    low, high = low - 0.04 * spread if low > 0.04 * spread else min(low, 0.0), high + 0.04 * spread
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * number for number in range(first, last + 1)]


def _across(chart: Chart, points: Sequence[ChartPoint], ticks: Sequence[tuple[float, str]]) -> Callable[[float], float]:
    shape: Callable[[float], float] = math.log if chart.log_x else float
    values = [shape(v) for v in (*(p.x for p in points), *(value for value, _ in ticks))]
    low, high = min(values), max(values)
    room = (high - low) * 0.04 or 1.0
    return _linear(low - room, high + room, _LEFT, WIDTH - _RIGHT, shape)


def _up(ticks: Sequence[float]) -> Callable[[float], float]:
    return _linear(ticks[0], ticks[-1], HEIGHT - _BOTTOM, _TOP, float)


def _linear(
    low: float, high: float, start: float, end: float, shape: Callable[[float], float]
) -> Callable[[float], float]:
    return lambda value: round(start + (shape(value) - low) / (high - low) * (end - start), 1)


def _axes(
    chart: Chart, scales: _Scales, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[float]
) -> Iterator[Markup]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for value in y_ticks:
        y = scales.up(value)
        yield element("line", class_="grid", x1=_LEFT, x2=right, y1=y, y2=y)
        yield element("text", f"{value:.6g}", class_="tick", x=_LEFT - 5, y=y + 4, text_anchor="end")
    every = math.ceil(len(x_ticks) / 8)
    for number, (value, text) in enumerate(x_ticks):
        x = scales.across(value)
        yield element("line", class_="grid", x1=x, x2=x, y1=_TOP, y2=bottom)
        if number % every == 0:
            yield element("text", text, class_="tick", x=x, y=bottom + 15, text_anchor="middle")
    if chart.level is not None:
        y = scales.up(chart.level)
        yield element("line", class_="level", x1=_LEFT, x2=right, y1=y, y2=y)
    middle = (_LEFT + right) / 2
    yield element("text", chart.x, class_="axis", x=middle, y=HEIGHT - 6, text_anchor="middle")
    turned = f"rotate(-90 12 {(_TOP + bottom) / 2})"
    yield element("text", chart.y, class_="axis", x=12, y=(_TOP + bottom) / 2, text_anchor="middle", transform=turned)


def _band(line: ChartLine, scales: _Scales, colour: str) -> Markup:
    banded = [(p.x, p.low, p.high) for p in line.points if p.low is not None and p.high is not None]
    low = [(scales.across(x), scales.up(end)) for x, end, _ in banded]
    high = [(scales.across(x), scales.up(end)) for x, _, end in reversed(banded)]
    if len(banded) < 2:
        return Markup("")
    return element("path", d=f"M{_path([*low, *high])}Z", class_=f"band {colour}")


def _line(chart: Chart, line: ChartLine, scales: _Scales, colour: str) -> Iterator[Markup]:
    places = [(scales.across(p.x), scales.up(p.y)) for p in line.points]
    if line.style == "line" and len(places) > 1:
        yield element("path", d=f"M{_path(places)}", class_=f"curve {colour}")
    alone = len(places) == 1 or line.style != "line"
    for point, (x, y) in zip(line.points, places, strict=True):
        if alone and point.low is not None and point.high is not None:
            ends = {"y1": scales.up(point.low), "y2": scales.up(point.high)}
            yield element("line", x1=x, x2=x, **ends, class_=f"whisker {colour}")
        told = element("title", _point_text(chart, line, point))
        if line.style == "star":
            yield element("path", told, d=_star(x, y), class_=f"star {colour}")
        else:
            yield element("circle", told, cx=x, cy=y, r=3, class_=f"point {colour}")


def _point_text(chart: Chart, line: ChartLine, point: ChartPoint) -> str:
    x = chart.ticks[int(point.x)] if chart.ticks else f"{point.x:.4g}"
    band = "" if point.low is None or point.high is None else f" ({point.low:.4g} to {point.high:.4g})"
    return f"{point.label or line.label}: {chart.x} {x}, {chart.y} {point.y:.4g}{band}"


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:g} {y:g}" for x, y in places)


def _star(x: float, y: float) -> str:
    turns = [(math.pi * (n / 5 - 0.5), 8 if n % 2 == 0 else 3.4) for n in range(10)]
    return f"M{_path([(round(x + r * math.cos(a), 1), round(y + r * math.sin(a), 1)) for a, r in turns])}Z"


def _legend(lines: Sequence[ChartLine], colours: dict[str, str]) -> Markup:
    keys = dict.fromkeys(line.label for line in lines if line.style != "star")
    items = (element("li", element("span", class_=f"key {colours[label]}"), label) for label in keys)
    return element("ul", *items, class_="legend")
