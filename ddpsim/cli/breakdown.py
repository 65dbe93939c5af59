"""Lines on a step's time, of a prediction or a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddpsim.simulation.jobs.job_options import JobOptions
    from ddpsim.trace.metrics import Summary


def statistic(summary: Summary) -> str:
    """Return the statistic of a step's time in brackets where iterations differ by design; else nothing."""
    return "" if summary.iteration_statistic == "median" else f" ({summary.iteration_statistic})"


def step_line(job: JobOptions, iteration_s: float) -> list[str]:
    """Return the line on a step of the optimizer that has several micro-batches; none where it has one."""
    from ddpsim.common.units import format_time

    if job.accumulate == 1:
        return []
    reducing = "each reduces gradients" if job.sync == "every" else "only the last reduces gradients"
    step, micro_batch = format_time(job.accumulate * iteration_s), format_time(iteration_s)
    return [f"step       {step} of {job.accumulate} micro-batches, {micro_batch} each on average; {reducing}"]
