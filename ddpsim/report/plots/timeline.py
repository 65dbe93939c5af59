"""One step: what computed, and when each bucket waited, met the other ranks, and moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ddpsim.common.units import MIB
from ddpsim.report.charts.timeline import BROADCAST, TimelineStep, timeline_from_trace
from ddpsim.report.plots.figure import legend_beside, save
from ddpsim.trace.metrics import summarise
from ddpsim.trace.records import BACKWARD, FORWARD, OPTIMIZER, WAIT, Trace

_COLOURS = {FORWARD: "#4c78a8", BACKWARD: "#f58518", OPTIMIZER: "#54a24b", WAIT: "#e8e8e8", BROADCAST: "#d6bd3a"}
_NAMES = {WAIT: "waiting for the network"}
_LIVES = {"ready, not started": "0.8", "waiting for ranks": "#e45756", "on the wire": "#72b7b2"}
_NETWORK = ("#72b7b2", "#2f8f89")
"""Buckets of one lane take turns between two shades, so that neighbours differ."""
_LETTER = 0.008
"""Share of the step that a letter is wide: the name of a phase that is shorter stands in the legend."""
_MOST_LABELS = 30
"""Buckets up to which each is named."""


def plot_timeline(traces: Mapping[str, Trace], path: str | Path, rank: int | None = None) -> None:
    """Draw one synchronised step of a rank, the lowest recorded one, a panel a trace and a row a bucket."""
    steps = [timeline_from_trace(trace, summarise(trace).iteration_s, label, rank) for label, trace in traces.items()]
    figure = Figure(figsize=(10, 3.2 * len(steps)), layout="constrained")
    shared: Any = None
    for row, step in enumerate(steps, start=1):
        axes = figure.add_subplot(len(steps), 1, row, sharex=shared)
        shared = shared or axes
        _draw_rows(axes, step)
        axes.set(title=step.label, xlabel="ms from the start of forward" if row == len(steps) else "")
    save(figure, path)


def _draw_rows(axes: Any, step: TimelineStep) -> None:
    _draw_phases(axes, step, (-0.4, 0.8))
    short = {}
    for name, start_s, end_s in step.phases:
        if end_s - start_s < _LETTER * len(name) * step.iteration_s:
            short[name] = _NAMES.get(name, name)
            continue
        axes.text((start_s + end_s) / 2 * 1e3, 0, name, ha="center", va="center", fontsize=7, clip_on=True)
    for name, label in short.items():
        axes.barh([-9], [0], color=_COLOURS[name], label=label)
    for number, bucket in enumerate(step.buckets, start=1):
        times = (bucket.ready_s, bucket.started_s, bucket.moving_s, bucket.finished_s)
        for (begin_s, end_s), (label, colour) in zip(pairwise(times), _LIVES.items(), strict=True):
            named = {"label": label} if number == 1 else {}
            at = (begin_s * 1e3, max(end_s - begin_s, 0) * 1e3)
            axes.broken_barh([at], (number - 0.4, 0.8), color=colour, **named)
    axes.axvline(step.iteration_s * 1e3, color="0.3", linewidth=0.8, linestyle="--")
    ticks = range(len(step.buckets) + 1)
    sizes = [f"bucket {b.index}, {b.size_bytes / MIB:.3g} MiB" for b in step.buckets]
    axes.set(yticks=list(ticks), ylim=(len(step.buckets) + 0.6, -0.6))
    axes.set_yticklabels(["compute", *sizes] if len(sizes) <= _MOST_LABELS else [""] * len(ticks), fontsize=7)
    axes.grid(True, axis="x", alpha=0.25)
    if step.buckets:
        legend_beside(axes, fontsize=7)


def _draw_phases(axes: Any, step: TimelineStep, rows: tuple[float, float]) -> None:
    for name, start_s, end_s in step.phases:
        axes.broken_barh([(start_s * 1e3, (end_s - start_s) * 1e3)], rows, color=_COLOURS[name])


def plot_lanes(steps: Sequence[TimelineStep], path: str | Path) -> None:
    """Draw steps over one axis of time, each as a lane of computation above a lane of the network."""
    figure = Figure(figsize=(10, 1.8 * len(steps)), layout="constrained")
    axes = figure.add_subplot()
    for place, step in enumerate(steps):
        _draw_lanes(axes, step, 2.6 * place)
    longest_s = max(step.iteration_s for step in steps)
    axes.set(xlim=(0, 1.1 * longest_s * 1e3), ylim=(2.6 * len(steps) - 0.6, -0.1), yticks=[])
    axes.set_xlabel("ms from the start of forward")
    names = dict.fromkeys(name for step in steps for name, _, _ in step.phases)
    handles = [axes.barh([-9], [0], color=_COLOURS[name], label=_NAMES.get(name, name)) for name in names]
    handles.append(axes.barh([-9], [0], color=_NETWORK[0], label="buckets on the network"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    save(figure, path)


def _draw_lanes(axes: Any, step: TimelineStep, top: float) -> None:
    _draw_phases(axes, step, (top, 0.85))
    for number, bucket in enumerate(step.buckets):
        at = (bucket.started_s * 1e3, (bucket.finished_s - bucket.started_s) * 1e3)
        axes.broken_barh([at], (top + 0.95, 0.85), color=_NETWORK[number % 2])
    end_ms = step.iteration_s * 1e3
    axes.plot([end_ms] * 2, [top - 0.05, top + 1.85], color="0.2", linewidth=1)
    axes.text(end_ms * 1.004, top + 0.45, f"{end_ms:.0f} ms", va="center", fontsize=10)
    axes.text(-0.012, top + 0.9, step.label, transform=axes.get_yaxis_transform(), ha="right", va="center")
