"""Each kind of picture from what it is of, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpsim.report.charts import Axis, CapCurve, Step, cap_charts, gain_charts, measured_chart, size_chart, step_charts
from ddpsim.report.plots.charts import PictureLayout, save_charts

STEPS = PictureLayout(share_y=True)
"""Of panels over what is varied, which are compared with each other."""


def plot_caps(panels: Mapping[str, Mapping[str, CapCurve]], path: str | Path) -> None:
    """Draw `cap_charts`: latency over bucket cap beside torch's default's, panels by title, lines by label."""
    save_charts(cap_charts(panels), path, STEPS)


def plot_steps(panels: Mapping[str, Mapping[str, Sequence[Step]]], path: str | Path, varied: str | Axis) -> None:
    """Draw `step_charts`: steps with their 80 % bands over what is varied, panels by title, lines by label."""
    save_charts(step_charts(panels, Axis(varied) if isinstance(varied, str) else varied), path, STEPS)


def plot_sizes(curves: Mapping[str, Sequence[tuple[float, float]]], path: str | Path) -> None:
    """Draw `size_chart`: allreduce time over message size; lines by label, of (bytes, microseconds)."""
    save_charts([size_chart(curves)], path, PictureLayout(8.4, 5.0, legend="beside"))


def plot_validation(
    points: Mapping[str, Sequence[tuple[float, float]]], path: str | Path, unit: str = "iteration (ms)"
) -> None:
    """Draw `measured_chart`: predicted over measured with a band of 5 %, a colour a group.

    Args:
        points: label to (measured, predicted) in seconds.
        path: the PNG.
        unit: what the axes hold; values are drawn in milliseconds.
    """
    save_charts([measured_chart(points, held=(unit, ""))], path, PictureLayout(7.4, 5.4, legend="beside"))


def plot_gains(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draw `gain_charts` of the rows of `ddpsim order-bench --json`: a panel a machine."""
    save_charts(gain_charts(rows), path, PictureLayout(6.4, 5.6, share_y=True, legend_columns=2))
