"""One step: what computed, and when each bucket waited, met the other ranks, and moved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ddpsim.plots.figure import save
from ddpsim.trace.metrics import arrivals
from ddpsim.trace.records import BACKWARD, COMPUTE, FORWARD, OPTIMIZER, Trace

_COLOURS = {FORWARD: "#4c78a8", BACKWARD: "#f58518", OPTIMIZER: "#54a24b"}


def plot_timeline(traces: Mapping[str, Trace], path: str | Path, rank: int = 0) -> None:
    """Draw one synchronised step of `rank`, a panel a trace: computation, each bucket's wait, skew, wire time."""
    figure = Figure(figsize=(10, 3.2 * len(traces)), layout="constrained")
    shared: Any = None
    for row, (label, trace) in enumerate(traces.items()):
        axes = figure.add_subplot(len(traces), 1, row + 1, sharex=shared)
        shared = shared or axes
        _draw_step(axes, trace, rank)
        axes.set(title=label, xlabel="ms from the start of forward" if row == len(traces) - 1 else "")
    save(figure, path)


def _draw_step(axes: Any, trace: Trace, rank: int) -> None:
    iterations = trace.of_rank(rank)
    step = next((it for it in reversed(iterations) if it.synced and it.buckets), iterations[-1])
    for span in trace.spans:
        inside = span.rank == rank and span.stream == COMPUTE and step.start_s <= span.start_s < step.end_s
        if inside and span.name in _COLOURS:
            at = ((span.start_s - step.start_s) * 1e3, span.duration_s * 1e3)
            axes.broken_barh([at], (-0.4, 0.8), color=_COLOURS[span.name])
            axes.text(at[0] + at[1] / 2, 0, span.name, ha="center", va="center", fontsize=7)
    arrived = arrivals(trace)
    for number, bucket in enumerate(step.buckets, start=1):
        wire_s = arrived.get((step.index, bucket.index)) if bucket.wire_s is None else bucket.wire_s
        times = (bucket.ready_s, bucket.started_s, wire_s or bucket.started_s, bucket.finished_s)
        ready, started, wire, finished = ((second - step.start_s) * 1e3 for second in times)
        labels = ("ready, not started", "waiting for ranks", "reducing") if number == 1 else (None,) * 3
        for begin, end, colour, label in zip(
            (ready, started, wire), (started, wire, finished), ("0.8", "#e45756", "#72b7b2"), labels, strict=True
        ):
            axes.broken_barh([(begin, max(end - begin, 0))], (number - 0.4, 0.8), color=colour, label=label)
    axes.axvline((step.end_s - step.start_s) * 1e3, color="0.3", linewidth=0.8, linestyle="--")
    ticks = range(len(step.buckets) + 1)
    sizes = [f"bucket {b.index}, {b.size_bytes / (1 << 20):.3g} MiB" for b in step.buckets]
    axes.set(yticks=list(ticks), ylim=(len(step.buckets) + 0.6, -0.6))
    axes.set_yticklabels(["compute", *sizes] if len(sizes) <= 30 else [""] * len(ticks), fontsize=7)
    axes.grid(True, axis="x", alpha=0.25)
    if step.buckets:
        axes.legend(fontsize=7, loc="lower left")
