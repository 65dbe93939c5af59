"""Predicted over measured times, beside what an exact prediction would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpsim.charts.model import Axis, Chart, ChartLine, ChartPoint, Scale

TOLERANCE = 0.05
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
    around = tuple(ChartPoint(end, end, (1 - TOLERANCE) * end, (1 + TOLERANCE) * end) for end in (low, high))
    exact = ChartLine(f"± {100 * TOLERANCE:.0f} %", around, "band")
    groups = tuple(
        ChartLine(label, tuple(sorted((ChartPoint(m * 1e3, p * 1e3) for m, p in group), key=lambda p: p.x)), "dots")
        for label, group in points.items()
    )
    name, unit = held
    x, y = (Axis(f"{side} {name}", unit, scale=scale, low=low, high=high) for side in ("measured", "predicted"))
    return Chart(title, x, y, (exact, *groups))
