"""What reports draw of predictions' documents: a step's parts as a bar, and curves over node counts with bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from ddpsim.report.charts.kinds import Step, step_charts
from ddpsim.report.charts.model import Axis, Chart, StackedBar
from ddpsim.report.charts.timeline import number
from ddpsim.trace import tables as trace_tables
from ddpsim.trace.metrics import INPUT, LAYERS

Row = Mapping[str, object]

MOST_ROWS = 500
"""Rows of a table: a page of more is slow to open, and the file that -o writes holds all."""

MOST_TIMELINES = 24
"""Rows, or node counts, of which a page keeps a timeline and a bar; chosen by hand, for less than a megabyte."""

PART_NAMES = {**trace_tables.PART_NAMES, "ddp_overhead_s": "DDP"}
"""How the parts of a step are called, in the order in which they are drawn."""


def bar(row: Row, label: str, of: Literal["step", "iteration"] = "step") -> StackedBar:
    """Return the parts of a predicted step, and its band; DDP's own part is a remainder, and may be below 0."""
    names = {INPUT: "batch", **PART_NAMES, LAYERS: trace_tables.layers_name(stages="pipeline" in row)}
    own = "step_" if of == "step" else ""
    known = {part: name for part, name in names.items() if part in PART_NAMES or own + part in row}
    parts = tuple((name, max(0.0, number(row, own + part))) for part, name in known.items())
    return StackedBar(label, parts, number(row, f"{of}_low_s"), number(row, f"{of}_high_s"))


def step_of(row: Row) -> tuple[float, float, float]:
    """Return a row's step in seconds with both ends of its band, which are the step where it has none."""
    middle = number(row, "step_s")
    return middle, number(row, "step_low_s") or middle, number(row, "step_high_s") or middle


def chart_over_nodes(rows: Sequence[Row]) -> tuple[Chart, ...]:
    """Return the step over node counts, a line a machine and a chart a workload; nothing of one node count.

    Where a machine has several rows of a node count, the fastest stands for them.
    """
    if len({number(row, "nodes") for row in rows}) < 2:
        return ()
    names = dict.fromkeys(str(row["workload"]) for row in rows)
    panels = {
        f"{name}: step over nodes, with its band": _group_by_machine([row for row in rows if row["workload"] == name])
        for name in names
    }
    return step_charts(panels, Axis("nodes"))


def _group_by_machine(rows: Sequence[Row]) -> dict[str, list[Step]]:
    lines: dict[str, dict[str, Step]] = {str(row["topology"]): {} for row in rows}
    for row in sorted(rows, key=lambda row: number(row, "step_s")):
        nodes = str(int(number(row, "nodes")))
        lines[str(row["topology"])].setdefault(nodes, (nodes, step_of(row)))
    return {machine: list(steps.values()) for machine, steps in lines.items()}
