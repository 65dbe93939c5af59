"""Signed errors of predictions over what was measured, with the noise of the measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpsim.report.charts import Axis, Chart, ChartLine, ChartPoint
from ddpsim.report.charts.model import Scale
from ddpsim.report.plots import PictureLayout, save_charts

BANDS = (0.05, 0.02)
"""Half widths that are shaded."""


def plot_errors(
    points: Mapping[str, Sequence[tuple[float, float, float | None]]], path: str | Path, unit: str = "iteration (ms)"
) -> None:
    """Draw the error of each prediction in percent over the measured time, a colour a group.

    Args:
        points: label to (measured, predicted, noise): seconds, and half the range of repeated runs over their mean;
            None where there is a single one.
        path: the PNG.
        unit: what the horizontal axis holds; values are drawn in milliseconds.
    """
    times = [measured * 1e3 for group in points.values() for measured, _, _ in group]
    low, high = min(times) * 0.9, max(times) * 1.1
    scale: Scale = "log" if high > 5 * low else "linear"
    bands = [
        ChartLine(
            f"± {100 * half:.0f} %", tuple(ChartPoint(end, 0, -100 * half, 100 * half) for end in (low, high)), "band"
        )
        for half in BANDS
    ]
    groups = [ChartLine(label, tuple(_point(*each) for each in group), "dots") for label, group in points.items()]
    x, y = Axis(f"measured {unit}", scale=scale, low=low, high=high), Axis("predicted / measured - 1", "%")
    save_charts([Chart("", x, y, (*bands, *groups))], path, PictureLayout(9.6, 4.2, legend="beside"))


def _point(measured_s: float, predicted_s: float, noise: float | None) -> ChartPoint:
    error = 100 * (predicted_s / measured_s - 1)
    ends = (None, None) if noise is None else (error - 100 * noise, error + 100 * noise)
    return ChartPoint(measured_s * 1e3, error, *ends)
