"""Time over message size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpsim.charts.model import Axis, Chart, ChartLine, ChartPoint


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
