"""The parts of a step and its buckets as tables, of a prediction or a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpsim.tables import Column, ResultTable
from ddpsim.tables.cells import ms, percent
from ddpsim.trace.metrics import INPUT, PARTS, BucketSummary, Summary
from ddpsim.units import format_size

PART_NAMES: Mapping[str, str] = dict(
    zip(
        PARTS,
        ("forward", "backward", "exposed communication", "buffer broadcast", "DDP overhead", "optimizer"),
        strict=True,
    )
)
"""What the parts of a step are called, but for what `layers_name` says."""

_BUCKETS: Mapping[str, Column[BucketSummary]] = {
    "index": Column("bucket", lambda b: b.index),
    "parameters": Column("parameters", lambda b: len(b.parameters)),
    "size": Column("size", lambda b: format_size(b.size_bytes), words=True),
    "bytes": Column("bytes", lambda b: f"{b.size_bytes:,}"),
    "ready": Column("ready ms", lambda b: ms(b.ready_s)),
    "launched": Column("launched", lambda b: ms(b.launched_s)),
    "started": Column("started", lambda b: ms(b.started_s)),
    "finished": Column("finished", lambda b: ms(b.finished_s)),
    "written": Column("written", lambda b: ms(b.written_s)),
}
PREDICTED_BUCKETS = ("index", "parameters", "size", "ready", "launched", "started", "finished")
MEASURED_BUCKETS = ("index", "bytes", "ready", "launched", "started", "finished", "written")


def layers_name(*, stages: bool) -> str:
    """Return what the part `layer_comm_s` of a step is called.

    Args:
        stages: of a pipeline's rank, which waits there for its neighbours' work too, and not for messages alone.
    """
    return "pipeline bubble and messages" if stages else "communication of layers"


def parts_table(
    summary: Summary, clipping_s: float | None = None, accumulate: int = 1, *, stages: bool = False
) -> ResultTable:
    """Return the parts in milliseconds and as shares; how much of the exposed communication was skew, where known.

    Args:
        summary: of a trace.
        clipping_s: of the optimizer's time, what clipping gradients is; None where it is not known.
        accumulate: of a step, all of which the milliseconds are of.
        stages: whether the step is a pipeline's (`layers_name`).
    """
    rows: list[tuple[str, float]] = []
    if summary.input_s is not None:
        rows.append(("waiting for the batch", getattr(summary, INPUT)))
    for part, name in PART_NAMES.items():
        rows.append((name, getattr(summary, part)))
        if part == "exposed_comm_s" and summary.exposed_skew_s is not None:
            rows.append(("  of which waiting for slower ranks", summary.exposed_skew_s))
    if clipping_s:
        rows.append(("  of which gradient clipping", clipping_s))
    if summary.layer_comm_s is not None:
        rows.append((layers_name(stages=stages), summary.layer_comm_s))
    columns: Sequence[Column[tuple[str, float]]] = (
        Column("part", lambda row: row[0], words=True),
        Column("ms", lambda row: ms(accumulate * row[1])),
        Column("share", lambda row: percent(row[1] / summary.iteration_s)),
    )
    return ResultTable.of(columns, rows)


def bucket_table(buckets: Sequence[BucketSummary], keys: Sequence[str]) -> ResultTable:
    """Return the buckets, a row each, with the columns of `keys`; times are from the start of forward."""
    return ResultTable.of([_BUCKETS[key] for key in keys], buckets)
