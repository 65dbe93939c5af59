"""A step on an axis of time: what computed, and when each bucket waited, met the other ranks, and moved."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BucketSpan:
    """One bucket's life in a step, in seconds from the start of forward; `wire_s` None where it is unknown."""

    index: int
    size_bytes: int
    parameters: int | None
    ready_s: float
    launched_s: float
    started_s: float
    wire_s: float | None
    finished_s: float
    written_s: float

    @property
    def moving_s(self) -> float:
        """When bytes could move: all ranks were there, as far as that is known."""
        return self.started_s if self.wire_s is None else self.wire_s

    @property
    def queued_s(self) -> float:
        """How long it was ready and no collective of it had begun."""
        return max(0.0, self.started_s - self.ready_s)

    @property
    def skew_s(self) -> float:
        """How long its collective waited for the last rank."""
        return max(0.0, self.moving_s - self.started_s)

    @property
    def on_wire_s(self) -> float:
        """How long its bytes moved."""
        return self.finished_s - self.moving_s


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
        buckets: in launch order.
        gradients_s: when each gradient was ready, ascending; empty where unknown.
        path: (cause, stream, start, end) of the longest path, in order; empty where unknown.
    """

    label: str
    iteration_s: float
    phases: tuple[tuple[str, float, float], ...]
    buckets: tuple[BucketSpan, ...]
    gradients_s: tuple[float, ...] = ()
    path: tuple[tuple[str, str, float, float], ...] = ()

    def document(self) -> dict[str, object]:
        """Return the step as JSON values."""
        return {
            "label": self.label,
            "iteration_us": microseconds(self.iteration_s),
            "phases": [[name, microseconds(start), microseconds(end)] for name, start, end in self.phases],
            "columns": list(COLUMNS),
            "buckets": [_life(bucket) for bucket in self.buckets],
            "gradients_us": [microseconds(seconds) for seconds in self.gradients_s],
            "path": [[cause, stream, *map(microseconds, ends)] for cause, stream, *ends in self.path],
        }


def microseconds(seconds: float) -> float:
    """Return a time as documents hold it: in microseconds, rounded to tenths."""
    return round(seconds * 1e6, 1)


def _life(life: BucketSpan) -> list[object]:
    moments = (life.ready_s, life.launched_s, life.started_s, life.wire_s, life.finished_s, life.written_s)
    told = [None if seconds is None else microseconds(seconds) for seconds in moments]
    return [life.index, life.size_bytes, life.parameters, *told]
