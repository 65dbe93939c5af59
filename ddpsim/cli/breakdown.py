"""The parts of a step as a table, of a prediction or a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpsim.cli.output import ms, percent, table

if TYPE_CHECKING:
    from ddpsim.jobs.job import Job
    from ddpsim.trace.metrics import Summary

_NAMES = ("forward", "backward", "exposed communication", "buffer broadcast", "DDP overhead", "optimizer")
_INPUT = "waiting for the batch"
_OF_WHICH = "  of which waiting for ranks"
_CLIPPING = "  of which gradient clipping"


def statistic(summary: Summary) -> str:
    """Return in brackets what a step's time is of many, where iterations differ by design; nothing else."""
    return "" if summary.iteration_statistic == "median" else f" ({summary.iteration_statistic})"


def step_line(job: Job, iteration_s: float) -> list[str]:
    """Return the line on a step of the optimizer that has several micro-batches; none where it has one."""
    from ddpsim.units import format_time

    if job.accumulate == 1:
        return []
    reducing = "each reduces gradients" if job.sync == "every" else "the last alone reduces gradients"
    step, micro_batch = format_time(job.accumulate * iteration_s), format_time(iteration_s)
    return [f"step       {step} of {job.accumulate} micro-batches, {micro_batch} each in the mean; {reducing}"]


def breakdown(summary: Summary, clipping_s: float | None = None, micro_batches: int = 1) -> str:
    """Return the parts in milliseconds and as shares; how much of the exposed communication was skew, where known.

    Args:
        clipping_s: of the optimizer's time, what clipping gradients is; None where it is not known.
        micro_batches: of a step, all of which the milliseconds are of.
    """
    from ddpsim.trace.metrics import PARTS

    def row(name: str, seconds: float) -> tuple[str, str | None, str | None]:
        return f"  {name}", ms(micro_batches * seconds), percent(seconds / summary.iteration_s)

    rows = []
    if summary.input_s is not None:
        rows.append(row(_INPUT, summary.input_s))
    for part, name in zip(PARTS, _NAMES, strict=True):
        rows.append(row(name, getattr(summary, part)))
        if part == "exposed_comm_s" and summary.exposed_skew_s is not None:
            rows.append(row(_OF_WHICH, summary.exposed_skew_s))
    if clipping_s:
        rows.append(row(_CLIPPING, clipping_s))
    return table(("  part", "ms", "share"), rows)
