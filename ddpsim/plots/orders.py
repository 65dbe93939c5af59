"""What order policies gain over stock torch, trace by trace, beside what an oracle would."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ddpsim.plots.figure import MARKERS, legend_below, save

_COLUMNS = 3
"""Panels beside each other."""
_WIDTH = 0.7
"""Of the place of one trace, what its points are spread over."""


def plot_gains(rows: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """Draw `gain` with its interval and the oracle's `bound` by trace, a panel a machine.

    A policy has a colour of its own, a predictor a mark.

    Args:
        rows: of `ddpsim order-bench --json`.
        path: the PNG.
    """
    machines = list(dict.fromkeys(row["machine"] for row in rows))
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    columns = min(len(machines), _COLUMNS)
    figure = Figure(figsize=(6.4 * columns, 5.6 * math.ceil(len(machines) / columns)), layout="constrained")
    shared: Any = None
    for number, machine in enumerate(machines):
        axes = figure.add_subplot(math.ceil(len(machines) / columns), columns, number + 1, sharey=shared)
        shared = shared or axes
        _draw(axes, [row for row in rows if row["machine"] == machine], traces)
        axes.set(ylabel="step saved over torch (%), 90 % interval", title=machine)
        axes.set_xticks(range(len(traces)), traces, fontsize="x-small")
        axes.axhline(0, color="black", linewidth=0.8)
        axes.grid(True, axis="y", alpha=0.25)
        legend_below(axes, ncols=2)
    save(figure, path)


def _draw(axes: Any, rows: Sequence[Mapping[str, Any]], traces: Sequence[str]) -> None:
    lines = list(dict.fromkeys((row["policy"], row["predictor"]) for row in rows))
    policies, predictors = (list(dict.fromkeys(line[place] for line in lines)) for place in (0, 1))
    for number, line in enumerate(lines):
        aside = _WIDTH * ((number + 0.5) / len(lines) - 0.5)
        own = [row for row in rows if (row["policy"], row["predictor"]) == line]
        places = [traces.index(row["trace"]) + aside for row in own]
        gains = [100 * row["gain"] for row in own]
        below = [100 * (row["gain"] - row["gain_low"]) for row in own]
        above = [100 * (row["gain_high"] - row["gain"]) for row in own]
        marker = MARKERS[predictors.index(line[1]) % len(MARKERS)]
        style = {"marker": marker, "markersize": 4, "linestyle": "", "capsize": 2}
        axes.errorbar(
            places, gains, yerr=[below, above], color=f"C{policies.index(line[0]) % 10}", label=", ".join(line), **style
        )
    bounds = {row["trace"]: 100 * row["bound"] for row in rows}
    ends = [(traces.index(trace) - _WIDTH / 2, traces.index(trace) + _WIDTH / 2) for trace in bounds]
    axes.hlines(list(bounds.values()), *zip(*ends, strict=True), color="grey", linestyle="--", label="oracle")
