"""What a plan tried, as charts over the bucket cap."""

from __future__ import annotations

from collections.abc import Iterable

from ddpsim.common.units import format_count
from ddpsim.planning.rows import PlanRow
from ddpsim.report.charts.kinds import CapCurve, cap_charts
from ddpsim.report.charts.model import Chart


def charts_of(rows: Iterable[PlanRow]) -> tuple[Chart, ...]:
    """Return latency over bucket cap: a chart a workload and machine, a line a node count, a star what is advised."""
    panels: dict[str, dict[str, CapCurve]] = {}
    for row in rows:
        chosen = row.chosen
        label = f"{format_count(chosen.nodes, 'node')}, {format_count(chosen.summary.world_size, 'rank')}"
        band = None if row.keep_default else (1 - row.gain_high, 1 - row.gain_low)
        curve = CapCurve(row.sweep, row.default.iteration_s, (row.cap_mb, chosen.iteration_s), band, row.paste)
        panels.setdefault(f"{chosen.workload.name} on {chosen.topology.name}", {})[label] = curve
    return cap_charts(panels)
