"""A step on an axis of time: what computed, and when each bucket waited, met the other ranks, and moved."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.trace.records import MOMENTS, BucketTimes

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
            "buckets": [_life(*bucket) for bucket in zip(self.buckets, self.counts, strict=True)],
            "gradients_us": [microseconds(seconds) for seconds in self.gradients_s],
            "path": [[cause, stream, *map(microseconds, ends)] for cause, stream, *ends in self.path],
        }


def microseconds(seconds: float) -> float:
    """Return a time as documents hold it: in microseconds, rounded to tenths."""
    return round(seconds * 1e6, 1)


def _life(life: BucketTimes, count: int | None) -> list[object]:
    moments = [getattr(life, name) for name in MOMENTS]
    told = [None if seconds is None else microseconds(seconds) for seconds in moments]
    return [life.index, life.size_bytes, count, *told]
