"""One step on an axis of time: what computed, and when each bucket waited, met the other ranks, and moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddpsim.common.strict import list_mappings
from ddpsim.trace.metrics import arrivals
from ddpsim.trace.records import (
    BACKWARD,
    FORWARD,
    MOMENTS,
    OPTIMIZER,
    WAIT,
    BucketTimes,
    Iteration,
    PathSpan,
    Trace,
    spans_of,
)

COLUMNS = (
    "bucket", "size_bytes", "parameters", "ready_us", "launched_us", "started_us", "wire_us", "finished_us",
    "written_us",
)  # fmt: skip
"""Of a bucket's row in a step's document."""


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One step of rank 0 on a timeline.

    Attributes:
        label: what it is of: torch's default, the plan, the measured run.
        phases: (name, start, end) of what computed or waited, in seconds from the start of forward.
        buckets: in launch order, their moments from the start of forward.
        counts: how many parameters each bucket has; None where that is not known.
        gradients_s: when each gradient was ready, ascending; empty where unknown.
        path: (cause, stream, start, end) of the longest path, in order; empty where unknown.
    """

    label: str
    iteration_s: float
    phases: tuple[tuple[str, float, float], ...]
    buckets: tuple[BucketTimes, ...]
    counts: tuple[int | None, ...]
    gradients_s: tuple[float, ...] = ()
    path: tuple[tuple[str, str, float, float], ...] = ()

    def document(self) -> dict[str, object]:
        """Return the step as JSON values."""
        return {
            "label": self.label,
            "iteration_us": microseconds(self.iteration_s),
            "phases": [[name, microseconds(start), microseconds(end)] for name, start, end in self.phases],
            "columns": list(COLUMNS),
            "buckets": [
                [
                    life.index,
                    life.size_bytes,
                    count,
                    *(None if (moment := getattr(life, name)) is None else microseconds(moment) for name in MOMENTS),
                ]
                for life, count in zip(self.buckets, self.counts, strict=True)
            ],
            "gradients_us": [microseconds(seconds) for seconds in self.gradients_s],
            "path": [[cause, stream, *map(microseconds, ends)] for cause, stream, *ends in self.path],
        }


def microseconds(seconds: float) -> float:
    """Return a time as documents hold it: in microseconds, rounded to tenths."""
    return round(seconds * 1e6, 1)


BROADCAST = "buffer broadcast"
_PHASES = (FORWARD, BACKWARD, OPTIMIZER, WAIT)


def timeline_from_trace(trace: Trace, iteration_s: float, label: str, rank: int | None = None) -> TimelineStep:
    """Return the synchronised step of a rank, the lowest recorded one, whose period is nearest to `iteration_s`."""
    steps = trace.of_rank(trace.ranks[0] if rank is None else rank)
    synced = [it for it in steps if it.synced and it.buckets] or steps
    step = min(synced, key=lambda it: (abs(it.iteration_s - iteration_s), it.index))
    arrived = arrivals(trace)
    return TimelineStep(
        label=label,
        iteration_s=step.iteration_s,
        phases=_phases(step, trace.backend),
        buckets=tuple(_life(b, step.start_s, arrived.get((step.index, b.index))) for b in step.buckets),
        counts=tuple(len(bucket.parameters) for bucket in step.buckets),
        gradients_s=tuple(sorted(gradient.ready_s - step.start_s for gradient in step.gradients)),
        path=_path(trace.path_of(step)),
    )


def timeline_from_document(document: Mapping[str, object], label: str, path: Sequence[PathSpan] = ()) -> TimelineStep:
    """Return the step that a predict document describes: its parts one after another, its buckets' times, its path."""
    broadcast, total = number(document, "buffer_broadcast_s"), number(document, "iteration_s")
    forward = broadcast + number(document, "forward_s")
    buckets = list_mappings(document.get("buckets"))
    lives = tuple(_read_bucket(each) for each in buckets)
    counts = tuple(len(names) if isinstance(names := each.get("parameters"), list) else None for each in buckets)
    # On one clock hooks and copies lie between the gradients, so that backward ends with the last of them.
    backward = max([forward + number(document, "backward_compute_s"), *(life.ready_s for life in lives)])
    phases = (
        (BROADCAST, 0.0, broadcast),
        (FORWARD, broadcast, forward),
        (BACKWARD, forward, backward),
        (WAIT, backward, backward + number(document, "exposed_comm_s")),
        (OPTIMIZER, total - number(document, "optimizer_s"), total),
    )
    drawn = tuple(phase for phase in phases if phase[2] > phase[1])
    return TimelineStep(label, total, drawn, lives, counts, path=_path(path))


def _path(spans: Sequence[PathSpan]) -> tuple[tuple[str, str, float, float], ...]:
    return tuple((span.cause, span.stream, span.start_s, span.end_s) for span in spans)


def _read_bucket(bucket: Mapping[str, object]) -> BucketTimes:
    return BucketTimes(
        index=int(number(bucket, "index")),
        size_bytes=int(number(bucket, "size_bytes")),
        parameters=(),
        ready_s=number(bucket, "ready_s"),
        launched_s=number(bucket, "launched_s"),
        started_s=number(bucket, "started_s"),
        wire_s=None if bucket.get("wire_s") is None else number(bucket, "wire_s"),
        finished_s=number(bucket, "finished_s"),
        written_s=max(number(bucket, "written_s"), number(bucket, "finished_s")),
    )


def _phases(step: Iteration, backend: str) -> tuple[tuple[str, float, float], ...]:
    start = step.start_s
    spans = [span for span in spans_of([step], backend) if span.name in _PHASES and span.duration_s > 0]
    first = [(BROADCAST, 0.0, step.buffer_broadcast_s)] if step.buffer_broadcast_s > 0 else []
    return (*first, *((span.name, span.start_s - start, span.end_s - start) for span in spans))


def _life(bucket: BucketTimes, start_s: float, arrived_s: float | None) -> BucketTimes:
    wire = arrived_s if bucket.wire_s is None else bucket.wire_s
    return replace(bucket, wire_s=wire).shift(-start_s)


def number(document: Mapping[str, object], key: str) -> float:
    """Return a number of a document; 0 where it has none of that name."""
    value = document.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
