"""Pictures, written whole as PNG: bucket size against latency, validation, a step's timeline, a machine's graph.

matplotlib is used without its global state; the same input gives the same bytes.
"""

from ddpsim.plots.curves import CapCurve, plot_caps, plot_sizes, plot_validation
from ddpsim.plots.machine import plot_topology
from ddpsim.plots.orders import plot_gains
from ddpsim.plots.steps import plot_steps
from ddpsim.plots.timeline import plot_timeline

__all__ = [
    "CapCurve", "plot_caps", "plot_gains", "plot_sizes", "plot_steps", "plot_timeline", "plot_topology",
    "plot_validation",
]  # fmt: skip
