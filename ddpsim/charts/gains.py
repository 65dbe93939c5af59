"""What order policies gain over stock torch, trace by trace, beside what an oracle would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddpsim.charts.model import Axis, Chart, ChartLine, ChartPoint, categories

_WIDTH = 0.7
"""Of the place of one trace, what its points are spread over."""


def gain_charts(rows: Sequence[Mapping[str, Any]]) -> tuple[Chart, ...]:
    """Return `gain` with its interval and the oracle's `bound` by trace, a chart a machine.

    A policy has a colour of its own, a predictor a mark.

    Args:
        rows: of `ddpsim order-bench --json`.
    """
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    machines = dict.fromkeys(row["machine"] for row in rows)
    return tuple(_chart(machine, [row for row in rows if row["machine"] == machine], traces) for machine in machines)


def _chart(machine: str, rows: Sequence[Mapping[str, Any]], traces: Sequence[str]) -> Chart:
    ways = list(dict.fromkeys((row["policy"], row["predictor"]) for row in rows))
    lines = tuple(
        ChartLine(
            ", ".join(way),
            tuple(_point(row, traces) for row in rows if (row["policy"], row["predictor"]) == way),
            "dots", of=way[0], mark=way[1], whiskers=True,
        )
        for way in ways
    )  # fmt: skip
    bounds = {row["trace"]: 100 * row["bound"] for row in rows}
    oracle = ChartLine("oracle", tuple(ChartPoint(traces.index(t), bound) for t, bound in bounds.items()), "bound")
    x, y = Axis("", ticks=categories(traces)), Axis("step saved over torch", "%", "90 % interval", level=0.0)
    return Chart(machine, x, y, (*lines, oracle), apart=_WIDTH / len(ways))


def _point(row: Mapping[str, Any], traces: Sequence[str]) -> ChartPoint:
    gain, low, high = (100 * row[key] for key in ("gain", "gain_low", "gain_high"))
    return ChartPoint(traces.index(row["trace"]), gain, low, high)
