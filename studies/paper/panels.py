"""Charts of lines as a paper drew them: with bands, and with stars for what the paper reports."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.report.charts import Axis, ChartLine, ChartPoint
from ddpsim.report.plots import PictureLayout

LAYOUT = PictureLayout(5.0, 4.2, columns=2, legend_columns=2)
LATENCY = Axis("latency", "s", low=0)
_MARKED = 40
"""Points from which a line has no marks."""


def curve(
    label: str, xs: Sequence[float], ys: Sequence[float], band: tuple[Sequence[float], Sequence[float]] | None = None
) -> ChartLine:
    """Return values over an axis, with the lower and upper ends of their band."""
    ends: tuple[Sequence[float | None], Sequence[float | None]] = band or ([None] * len(xs), [None] * len(xs))
    points = tuple(ChartPoint(*each) for each in zip(xs, ys, *ends, strict=True))
    return ChartLine(label, points, "line" if len(points) < _MARKED else "curve")


def reported(label: str, x: float, y: float) -> ChartLine:
    """Return what the paper reports: a star."""
    return ChartLine(label, (ChartPoint(x, y),), "star")


def gpus_axis(gpus: Sequence[int]) -> Axis:
    """Return the axis of numbers of GPUs, each with its label."""
    return Axis("GPUs", scale="log2", ticks=tuple((count, str(count)) for count in gpus))
