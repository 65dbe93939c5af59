"""Pictures, written whole as PNG: charts, which a page has as SVG, a step's timeline, a machine's graph.

matplotlib is used without its global state; the same input gives the same bytes.
"""

from ddpsim.charts.kinds import CapCurve
from ddpsim.plots.charts import PictureLayout, draw_svg, save_charts
from ddpsim.plots.kinds import plot_caps, plot_gains, plot_sizes, plot_steps, plot_validation
from ddpsim.plots.machine import plot_topology
from ddpsim.plots.timeline import plot_lanes, plot_timeline

__all__ = [
    "CapCurve", "PictureLayout", "draw_svg", "plot_caps", "plot_gains", "plot_lanes", "plot_sizes", "plot_steps",
    "plot_timeline", "plot_topology", "plot_validation", "save_charts",
]  # fmt: skip
