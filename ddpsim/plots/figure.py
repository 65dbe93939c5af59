"""How every picture is written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from ddpsim.charts.scales import log_ticks
from ddpsim.files import write_whole

MARKERS = "os^Dv<>Pph"
"""Of groups that one picture holds, by number."""


def save(figure: Figure, path: str | Path) -> None:
    """Write `figure` to `path` as PNG without software or time in it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    write_whole(path, buffer.getvalue())


def legend_beside(axes: Any, **style: Any) -> None:
    """Draw the legend to the right of `axes`, where it covers nothing."""
    axes.legend(**{"fontsize": 8, "loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0, **style})


def legend_below(axes: Any, lines: int = 1, **style: Any) -> None:
    """Draw the legend under `axes` and its labels of so many lines, where it covers nothing."""
    # In points, since labels of an axis take as many however high it is.
    below = ScaledTranslation(0, -(26 + 12 * lines) / 72, axes.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": axes.transAxes + below}
    axes.legend(**{"fontsize": 8, "borderaxespad": 0.0, **place, **style})


def label_logarithms(axis: Any, low: float, high: float) -> None:
    """Label a logarithmic axis between its ends as `log_ticks` says, in plain numbers."""
    axis.set_major_locator(FixedLocator(log_ticks(low, high)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
