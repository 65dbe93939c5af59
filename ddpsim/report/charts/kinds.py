"""Each kind of chart from what it is of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from ddpsim.report.charts.model import Axis, Chart, ChartLine, ChartPoint, Scale, categories

_LEAST_CAP = 0.1
"""MiB at which a cap of 0, one bucket a gradient, is drawn on an axis of logarithms."""
_WIDE = 70
"""Characters of a line of the key."""
_APART = math.log(1.07)
"""Between the marks of neighbouring lines at one cap."""


@dataclass(frozen=True, slots=True)
class CapCurve:
    """The iteration over the bucket cap, of one machine and node count.

    Attributes:
        sweep: (cap in MiB, iteration in seconds), ascending.
        default_s: the iteration under torch's default.
        advised: the point of the advised plan, in the same units.
        band: 80 % band of the advised plan's step over the default's; None where the default is advised.
        paste: the advice, or the plan that is worth a trial, in words; empty where there is neither.
    """

    sweep: Sequence[tuple[float, float]]
    default_s: float
    advised: tuple[float, float]
    band: tuple[float, float] | None = None
    paste: str = ""


def cap_charts(panels: Mapping[str, Mapping[str, CapCurve]]) -> tuple[Chart, ...]:
    """Return iteration latency over torch's default's against bucket cap: a chart a title, a line a label.

    Marks of one cap stand beside each other, so that those that coincide all show; the legends say what is 1.
    """
    x = Axis("bucket cap", "MiB", scale="log")
    y = Axis("step over the default's", level=1.0)
    return tuple(Chart(title, x, y, _lines(curves), key=_key(curves), apart=_APART) for title, curves in panels.items())


def _key(curves: Mapping[str, CapCurve]) -> str:
    """Return what the star is, and below it what to paste for each line, in lines that a picture has room for."""
    lines = [f"{name}: {curve.paste}" for name, curve in curves.items() if curve.paste]
    return "\n".join(
        ["star: advised (a list at its mean bucket)", *(part for line in lines for part in wrap(line, _WIDE))]
    )


def _lines(curves: Mapping[str, CapCurve]) -> tuple[ChartLine, ...]:
    lines = []
    for name, curve in curves.items():
        label = f"{name}: default {curve.default_s * 1e3:.4g} ms"
        points = tuple(ChartPoint(max(cap, _LEAST_CAP), seconds / curve.default_s) for cap, seconds in curve.sweep)
        cap, seconds = curve.advised
        star = ChartPoint(max(cap, _LEAST_CAP), seconds / curve.default_s, *(curve.band or (None, None)))
        lines += [ChartLine(label, points), ChartLine(f"{name}, advised", (star,), "star", label)]
    return tuple(lines)


_GAINS_WIDTH = 0.7
"""Of the place of one trace, what its points are spread over."""


def gain_charts(rows: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    """Return `gain` with its interval and the oracle's `bound` by trace, a chart a machine.

    A policy has a colour of its own, a predictor a mark.

    Args:
        rows: of `ddpsim order-bench --json`.
    """
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    machines = dict.fromkeys(row["machine"] for row in rows)
    return tuple(
        _gain_chart(machine, [row for row in rows if row["machine"] == machine], traces) for machine in machines
    )


def _gain_chart(machine: str, rows: Sequence[Mapping[str, Any]], traces: Sequence[str]) -> Chart:
    ways = list(dict.fromkeys((row["policy"], row["predictor"]) for row in rows))
    lines = tuple(
        ChartLine(
            ", ".join(way),
            tuple(_point(row, traces) for row in rows if (row["policy"], row["predictor"]) == way),
            "dots", of=way[0], mark=way[1], whiskers=True,
        )
        for way in ways
    )  # fmt: skip
    bounds = {row["trace"]: 100 * row["bound"] for row in rows}
    oracle = ChartLine("order known", tuple(ChartPoint(traces.index(t), bound) for t, bound in bounds.items()), "bound")
    x, y = Axis("", ticks=categories(traces)), Axis("step saved over stock DDP", "%", "90 % interval", level=0.0)
    return Chart(machine, x, y, (*lines, oracle), apart=_GAINS_WIDTH / len(ways))


def _point(row: Mapping[str, Any], traces: Sequence[str]) -> ChartPoint:
    gain, low, high = (100 * row[key] for key in ("gain", "gain_low", "gain_high"))
    return ChartPoint(traces.index(row["trace"]), gain, low, high)


_TOLERANCE = 0.05
"""Half width of the band around what is exact, as a share."""


def measured_chart(
    points: Mapping[str, Sequence[tuple[float, float]]], title: str = "", held: tuple[str, str] = ("iteration", "ms")
) -> Chart:
    """Return predicted over measured with a band of 5 %, a colour a group.

    Args:
        points: label to (measured, predicted) in seconds.
        title: of the chart.
        held: what both axes hold, and the unit behind it; values are in milliseconds.
    """
    values = [value * 1e3 for group in points.values() for pair in group for value in pair]
    low, high = min(values) * 0.9, max(values) * 1.1
    scale: Scale = "log" if high / max(low, 1e-12) > 5 and low > 0 else "linear"
    around = tuple(ChartPoint(end, end, (1 - _TOLERANCE) * end, (1 + _TOLERANCE) * end) for end in (low, high))
    exact = ChartLine(f"± {100 * _TOLERANCE:.0f} %", around, "band")
    groups = tuple(
        ChartLine(label, tuple(sorted((ChartPoint(m * 1e3, p * 1e3) for m, p in group), key=lambda p: p.x)), "dots")
        for label, group in points.items()
    )
    name, unit = held
    x, y = (Axis(f"{side} {name}", unit, scale=scale, low=low, high=high) for side in ("measured", "predicted"))
    return Chart(title, x, y, (exact, *groups))


def size_chart(curves: Mapping[str, Sequence[tuple[float, float]]], title: str = "") -> Chart:
    """Return allreduce time over message size, both logarithmic.

    Args:
        curves: label to (bytes, microseconds). A label that ends in `measured` is points; labels that differ in the
            last word only have one colour.
        title: of the chart.
    """
    lines = tuple(_line(label, points) for label, points in curves.items())
    return Chart(title, Axis("message size", "bytes", scale="log2"), Axis("time", "us", scale="log"), lines)


def _line(label: str, points: Sequence[tuple[float, float]]) -> ChartLine:
    style = "dots" if label.endswith("measured") else "curve"
    drawn = tuple(ChartPoint(size, time) for size, time in sorted(points))
    return ChartLine(label, drawn, style, label.rpartition(" ")[0])  # type: ignore[arg-type]


Step = tuple[str, tuple[float, float, float]]
"""What is varied, as people write it, and the step in seconds with its 10th and 90th percentile."""
_STEPS_WIDTH = 0.5
"""Of the place of one value, what the lines' marks are spread over, so that those that coincide all show."""


def step_charts(panels: Mapping[str, Mapping[str, Sequence[Step]]], varied: Axis) -> tuple[Chart, ...]:
    """Return steps with their 80 % bands over what is varied: a chart a title, a line a label.

    Values stand at equal distances, numbers ascending, others in the order in which they first come.
    """
    return tuple(_step_chart(title, lines, varied) for title, lines in panels.items())


def sort_values(values: Sequence[str]) -> list[str]:
    """Return the values that differ: ascending where all are numbers, else in the order in which they first come.

    >>> sort_values(["2", "4", "1", "2"]), sort_values(["default", "25", "1"])
    (['1', '2', '4'], ['default', '25', '1'])
    """
    distinct = list(dict.fromkeys(values))
    try:
        return sorted(distinct, key=float)
    except ValueError:
        return distinct


def _step_chart(title: str, lines: Mapping[str, Sequence[Step]], varied: Axis) -> Chart:
    values = sort_values([value for steps in lines.values() for value, _ in steps])
    drawn = tuple(ChartLine(label, _points(steps, values), whiskers=True) for label, steps in lines.items())
    x = Axis(varied.name, varied.unit, ticks=categories(values))
    return Chart(title, x, Axis("step", "ms", "80 % band", "log"), drawn, apart=_STEPS_WIDTH / len(lines))


def _points(steps: Sequence[Step], values: Sequence[str]) -> tuple[ChartPoint, ...]:
    placed = sorted((values.index(value), times) for value, times in steps)
    return tuple(ChartPoint(float(x), 1e3 * step_s, 1e3 * low_s, 1e3 * high_s) for x, (step_s, low_s, high_s) in placed)
