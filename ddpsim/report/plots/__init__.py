"""Pictures, written whole as PNG: charts, which a page has as SVG, a step's timeline, a machine's graph.

matplotlib is used without its global state; the same input gives the same bytes.
"""

from ddpsim.report.charts.kinds import CapCurve
from ddpsim.report.plots.charts import PictureLayout, draw_svg, save_charts
from ddpsim.report.plots.kinds import plot_caps, plot_gains, plot_sizes, plot_steps, plot_validation
from ddpsim.report.plots.machine import plot_topology
from ddpsim.report.plots.timeline import plot_lanes, plot_timeline

__all__ = [
    "CapCurve", "PictureLayout", "draw_svg", "plot_caps", "plot_gains", "plot_lanes", "plot_sizes", "plot_steps",
    "plot_timeline", "plot_topology", "plot_validation", "save_charts",
]  # fmt: skip
