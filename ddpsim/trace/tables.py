"""The parts of a step as a table, of a prediction or a run."""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim.common.tables import ResultTable, table_of
from ddpsim.trace.metrics import INPUT, PARTS, Summary

PART_NAMES: Mapping[str, str] = dict(
    zip(
        PARTS,
        ("forward", "backward", "exposed communication", "buffer broadcast", "DDP overhead", "optimizer"),
        strict=True,
    )
)
"""What the parts of a step are called, but for what `layers_name` says."""


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
    shares = ((name, accumulate * seconds, seconds / summary.iteration_s) for name, seconds in rows)
    return table_of("", [dict(zip(("part", "time_s", "share"), row, strict=True)) for row in shares])
