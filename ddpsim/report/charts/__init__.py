"""Charts and timelines as data: axes with units, series, bands and marks, whatever they are drawn with.

`ddpsim.report.plots` draws them with matplotlib: as PNG, or as SVG inside a page.
"""

from ddpsim.report.charts.kinds import (
    CapCurve,
    Step,
    cap_charts,
    gain_charts,
    measured_chart,
    size_chart,
    sort_values,
    step_charts,
)
from ddpsim.report.charts.model import Axis, BoxBar, Chart, ChartLine, ChartPoint, StackedBar, categories

__all__ = [
    "Axis",
    "BoxBar",
    "CapCurve",
    "Chart",
    "ChartLine",
    "ChartPoint",
    "StackedBar",
    "Step",
    "cap_charts",
    "categories",
    "gain_charts",
    "measured_chart",
    "size_chart",
    "sort_values",
    "step_charts",
]  # fmt: skip
