"""What reports of several predictions share: a step's parts as a bar, and the step over node counts with its band."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.prediction.prediction import Prediction
from ddpsim.report.model import Bar, Chart, Charts, Line, Point
from ddpsim.trace.metrics import PARTS

PART_NAMES = {
    "forward_s": "forward",
    "backward_compute_s": "backward",
    "exposed_comm_s": "exposed communication",
    "buffer_broadcast_s": "buffer broadcast",
    "ddp_overhead_s": "DDP",
    "optimizer_s": "optimizer",
}
"""The parts of a step by their keys, in the order in which they are drawn."""


def bar(prediction: Prediction, label: str) -> Bar:
    """Return the parts of a predicted step, and its band."""
    parts = tuple((PART_NAMES[part], max(0.0, getattr(prediction.summary, part))) for part in PARTS)
    return Bar(label, parts, prediction.low_s, prediction.high_s)


def over_nodes(predictions: Sequence[Prediction]) -> tuple[Charts, ...]:
    """Return step and efficiency over node counts, a line a machine, charts a workload; none of one node count."""
    counts = sorted({p.nodes for p in predictions})
    if len(counts) < 2:
        return ()
    charts = []
    for name in dict.fromkeys(p.workload.name for p in predictions):
        own = [p for p in predictions if p.workload.name == name]
        charts.append(_over(own, counts, f"{name}: step", "step (ms)", 1e3))
    return (Charts("Over node counts", tuple(charts), "The area is the 80 % band."),)


def _over(predictions: Sequence[Prediction], counts: Sequence[int], title: str, unit: str, scale: float) -> Chart:
    lines: dict[str, list[Point]] = {}
    for p in sorted(predictions, key=lambda p: p.nodes):
        point = Point(counts.index(p.nodes), p.iteration_s * scale, p.low_s * scale, p.high_s * scale)
        lines.setdefault(p.topology.name, []).append(point)
    drawn = tuple(Line(label, tuple(points)) for label, points in lines.items())
    return Chart(title, "nodes", unit, drawn, ticks=tuple(map(str, counts)))
