"""Charts as SVG inside the page, read without a script; points tell their numbers on hover."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ddpsim.charts.model import Axis, BoxBar, Chart, ChartLine, ChartPoint, StackedBar, categories
from ddpsim.charts.scales import log_ticks, round_steps
from ddpsim.markup import Markup, SvgShape, call_macro, svg

WIDTH, HEIGHT = 380, 250
"""Of a chart in units that are pixels on a phone."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 10, 10, 40
_COLOURS = 8
"""Colours of lines that the style sheet has, `c0` to `c7`."""
_MOST_LABELS = 8
"""Labels beside each other that can be read."""
_STYLES = {"star": "reported"}
"""Classes of lines without a colour of their own, where those are not called as their style."""
_BAR = 0.3
"""Half of an upright bar's or box's width, of the place of one."""

Place = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class _Scales:
    """Where values stand on the drawing."""

    across: Place
    up: Place


def draw(chart: Chart) -> Markup:
    """Return a chart with its axes and legend as one figure."""
    x_ticks, y_ticks = _ticks(_label_axis(chart), list(chart.xs())), _ticks(chart.y, list(chart.ys()))
    scales = _Scales(_place_across(chart, x_ticks), _place_up(chart, y_ticks))
    drawn = [*_axes(chart, scales, x_ticks, y_ticks)]
    for line in chart.lines:
        drawn += _area(chart, line, scales)
    for line in sorted(chart.lines, key=lambda line: line.style not in ("line", "curve")):
        drawn += _line(chart, line, scales)
    drawn += [shape for place, bar in enumerate(chart.bars) for shape in _bar(chart, bar, place, scales)]
    drawn += [shape for place, box in enumerate(chart.boxes) for shape in _box(box, place, scales)]
    x, y = chart.x.label, chart.y.label
    picture = svg(drawn, f"{chart.title}: {y} over {x}", viewBox=f"0 0 {WIDTH} {HEIGHT}")
    return call_macro("parts.html", "figure", chart.title, picture, _keys(chart), chart.key)


def _label_axis(chart: Chart) -> Axis:
    """Return the horizontal axis, with the labels of bars or boxes where those stand on it."""
    labels = [bar.label for bar in chart.bars] + [box.label for box in chart.boxes]
    return replace(chart.x, ticks=categories(labels)) if labels else chart.x


def _colour(chart: Chart, line: ChartLine) -> str:
    """Return the class of a line's colour; what has none of its own is styled by what it is."""
    return f"c{chart.colour(line) % _COLOURS}" if line.coloured else _STYLES.get(line.style, line.style)


def _parts(chart: Chart) -> list[str]:
    return list(dict.fromkeys(name for bar in chart.bars for name, _ in bar.parts))


def _keys(chart: Chart) -> list[tuple[str, str]]:
    lines = {line.label: _colour(chart, line) for line in chart.lines if line.in_legend}
    parts = {name: f"c{number % _COLOURS}" for number, name in enumerate(_parts(chart))}
    return [(colour, label) for label, colour in (lines | parts).items()]


def _ticks(axis: Axis, values: Sequence[float]) -> list[tuple[float, str]]:
    if axis.ticks:
        return list(axis.ticks)
    ends = min(values), max(values)
    found = log_ticks(*ends) if axis.is_log else round_steps(*ends)
    return [(value, f"{value:.6g}") for value in found]


def _place_across(chart: Chart, ticks: Sequence[tuple[float, str]]) -> Place:
    shape: Place = math.log if chart.x.is_log else float
    values = [shape(value) for value in (*chart.xs(), *(value for value, _ in ticks))]
    low, high = min(values), max(values)
    room = _BAR + 0.2 if chart.bars or chart.boxes else max((high - low) * 0.04, chart.width / 2) or 1.0
    return _linear(low - room, high + room, (_LEFT, WIDTH - _RIGHT), shape)


def _place_up(chart: Chart, ticks: Sequence[tuple[float, str]]) -> Place:
    ends = (HEIGHT - _BOTTOM, _TOP)
    if not chart.y.is_log and not chart.y.ticks:
        return _linear(ticks[0][0], ticks[-1][0], ends, float)
    shape: Place = math.log if chart.y.is_log else float
    values = [shape(value) for value in (*chart.ys(), *(value for value, _ in ticks))]
    low, high = min(values), max(values)
    room = (high - low) * 0.04 or 1.0
    return _linear(low - room, high + room, ends, shape)


def _linear(low: float, high: float, ends: tuple[float, float], shape: Place) -> Place:
    start, end = ends
    return lambda value: round(start + (shape(value) - low) / (high - low) * (end - start), 1)


def _axes(
    chart: Chart, scales: _Scales, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]]
) -> Iterator[SvgShape]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    for value, text in y_ticks:
        y = scales.up(value)
        yield _draw_line("grid", _LEFT, y, right, y)
        yield SvgShape("text", {"class": "tick", "x": _LEFT - 5, "y": y + 4, "text-anchor": "end"}, text)
    every = math.ceil(len(x_ticks) / _MOST_LABELS)
    for number, (value, text) in enumerate(x_ticks):
        x = scales.across(value)
        yield _draw_line("grid", x, _TOP, x, bottom)
        if number % every == 0:
            yield SvgShape("text", {"class": "tick", "x": x, "y": bottom + 15, "text-anchor": "middle"}, text)
    if chart.y.level is not None:
        y = scales.up(chart.y.level)
        yield _draw_line("level", _LEFT, y, right, y)
    if chart.x.level is not None:
        x = scales.across(chart.x.level)
        yield _draw_line("level", x, _TOP, x, bottom)
    middle, centre = (_LEFT + right) / 2, (_TOP + bottom) / 2
    yield SvgShape("text", {"class": "axis", "x": middle, "y": HEIGHT - 6, "text-anchor": "middle"}, chart.x.label)
    turned = {"x": 12, "y": centre, "text-anchor": "middle", "transform": f"rotate(-90 12 {centre})"}
    yield SvgShape("text", {"class": "axis", **turned}, chart.y.label)


def _draw_line(style: str, x1: float, y1: float, x2: float, y2: float) -> SvgShape:
    return SvgShape("line", {"class": style, "x1": x1, "x2": x2, "y1": y1, "y2": y2})


def _area(chart: Chart, line: ChartLine, scales: _Scales) -> Iterator[SvgShape]:
    """Yield the area of a line's bands, where they are drawn as one."""
    banded = [(x, p.banded) for x, p in zip(chart.places(line), line.points, strict=True) if p.banded is not None]
    if line.whiskers or line.style not in ("line", "curve", "band") or len(banded) < 2:
        return
    low = [(scales.across(x), scales.up(ends[0])) for x, ends in banded]
    high = [(scales.across(x), scales.up(ends[1])) for x, ends in reversed(banded)]
    yield SvgShape("path", {"d": f"M{_path([*low, *high])}Z", "class": f"band {_colour(chart, line)}"})


def _line(chart: Chart, line: ChartLine, scales: _Scales) -> Iterator[SvgShape]:
    colour = _colour(chart, line)
    places = [(scales.across(x), scales.up(p.y)) for x, p in zip(chart.places(line), line.points, strict=True)]
    if line.style in ("line", "curve", "band") and len(places) > 1:
        yield SvgShape("path", {"d": f"M{_path(places)}", "class": f"curve {colour}"})
    for point, (x, y) in zip(line.points, places, strict=True):
        if point.banded is not None and (line.whiskers or len(places) == 1 or line.style in ("dots", "star")):
            yield _draw_line(f"whisker {colour}", x, scales.up(point.banded[0]), x, scales.up(point.banded[1]))
        said = _point_text(chart, line, point)
        if line.style == "star":
            yield SvgShape("path", {"d": _star(x, y), "class": f"star {colour}"}, title=said)
        elif line.style == "bound":
            ends = [scales.across(point.x + side * chart.width / 2) for side in (-1, 1)]
            yield SvgShape("line", _draw_line(f"whisker {colour}", ends[0], y, ends[1], y).attributes, title=said)
        elif line.style in ("line", "dots"):
            yield SvgShape("circle", {"cx": x, "cy": y, "r": 3, "class": f"point {colour}"}, title=said)


def _point_text(chart: Chart, line: ChartLine, point: ChartPoint) -> str:
    band = "" if point.banded is None else " ({:.4g} to {:.4g})".format(*point.banded)
    x, y = f"{chart.x.label} {chart.x.text(point.x)}", f"{chart.y.label} {chart.y.text(point.y)}"
    return f"{point.label or line.label}: {x}, {y}{band}"


def _bar(chart: Chart, bar: StackedBar, place: int, scales: _Scales) -> Iterator[SvgShape]:
    """Yield an upright bar of parts on top of each other, the band of its end, and what is reported of it."""
    below, middle = 0.0, scales.across(place)
    names = _parts(chart)
    for name, size in bar.parts:
        at = _box_at(place, below, below + size, scales)
        style = f"point c{names.index(name) % _COLOURS}"
        yield SvgShape("rect", {**at, "class": style}, title=f"{bar.label}: {name} {size:.4g}")
        below += size
    if bar.low < bar.high:
        yield _draw_line("reach", middle, scales.up(bar.low), middle, scales.up(bar.high))
    if bar.reported is not None:
        star = {"d": _star(middle, scales.up(bar.reported)), "class": "star reported"}
        yield SvgShape("path", star, title=f"{bar.label}: reported {bar.reported:.4g}")


def _box(box: BoxBar, place: int, scales: _Scales) -> Iterator[SvgShape]:
    low, lower, median, upper, high = box.spread
    middle, ends = scales.across(place), [scales.across(place + side * _BAR) for side in (-1, 1)]
    yield _draw_line("whisker c0", middle, scales.up(low), middle, scales.up(high))
    said = f"{box.label}: median {median:.4g}, {low:.4g} to {high:.4g}"
    yield SvgShape("rect", {**_box_at(place, lower, upper, scales), "class": "box c0"}, title=said)
    yield _draw_line("whisker c0", ends[0], scales.up(median), ends[1], scales.up(median))
    if box.best:
        yield SvgShape(
            "path", {"d": _star(middle, scales.up(median)), "class": "star reported"}, title=f"{box.label}: the best"
        )


def _box_at(place: int, low: float, high: float, scales: _Scales) -> dict[str, object]:
    left, right = (scales.across(place + side * _BAR) for side in (-1, 1))
    top, bottom = scales.up(high), scales.up(low)
    return {"x": left, "width": right - left, "y": top, "height": bottom - top}


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{x:g} {y:g}" for x, y in places)


def _star(x: float, y: float) -> str:
    turns = [(math.pi * (n / 5 - 0.5), 8 if n % 2 == 0 else 3.4) for n in range(10)]
    return f"M{_path([(round(x + r * math.cos(a), 1), round(y + r * math.sin(a), 1)) for a, r in turns])}Z"
