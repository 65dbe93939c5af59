"""`ddpsim order`: how far ranks, iterations and buckets disagree on the order of gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.expand import expand
from ddpsim.cli.output import Output
from ddpsim.common.errors import TraceError
from ddpsim.common.tables import Record, table_of

if TYPE_CHECKING:
    from ddpsim.bucketing.order.agreement import OrderReport
    from ddpsim.bucketing.order.traces import PlanFit


@expand
def order(
    measured: Annotated[str, typer.Argument(metavar="TRACE_DIR", help="Folder that a run's --out wrote.")],
    output: Output,
) -> None:
    """Report how far ranks, iterations and the buckets in force disagree on the order of gradients.

    Kendall's tau: 1 the same order, 0 unrelated, -1 reversed.
    """
    from ddpsim.bucketing.order.agreement import order_report
    from ddpsim.bucketing.order.arrivals import arrivals_of
    from ddpsim.bucketing.order.traces import fit_document, plan_fits
    from ddpsim.trace.json import read_trace

    trace = read_trace(measured)
    arrivals = arrivals_of(trace)
    if not arrivals:
        remedy = "record it with `python -m ddpexec run`, or simulate it with `ddpsim predict --trace`"
        raise TraceError("no iteration holds gradient times", place=measured, remedy=remedy)
    report, fits = order_report(arrivals), plan_fits(trace)
    output.emit({**report.document(), "plan": fit_document(fits)}, lambda: _text(report, fits))


def _text(report: OrderReport, fits: list[PlanFit]) -> str:
    from statistics import fmean

    from ddpsim.common.units import format_count, format_time

    rows = []
    if worst := report.between_ranks_worst:
        where = f"ranks {worst[2]} and {worst[3]}, iteration {worst[1]}"
        rows.append(_row("between ranks", report.between_ranks, worst[0], where))
    if worst := report.between_iterations_worst:
        where = f"iterations {worst[2]} and {worst[3]}, rank {worst[1]}"
        rows.append(_row("between iterations", report.between_iterations, worst[0], where))
    if report.unused:
        means = (report.between_ranks_with_unused, report.between_iterations_with_unused)
        for what, tau in zip(("ranks", "iterations"), means, strict=True):
            rows += [] if tau is None else [_row(f"between {what}, unused counted", tau)]
    if fits:
        fit = min(fits, key=lambda fit: fit.tau)
        where = f"rank {fit.rank}, iteration {fit.iteration}"
        rows.append(_row("buckets and arrivals", fmean(f.tau for f in fits), fit.tau, where))
    named = (("parameter", report.parameters), ("rank", report.ranks), ("iteration", report.iterations))
    head = ", ".join(format_count(count, noun) for noun, count in named)
    lines = [head, "", table_of("", rows).text()] if rows else [head]
    if fits:
        longest = max(fits, key=lambda fit: fit.held_back_s)
        mean, most = format_time(fmean(f.held_back_s for f in fits)), format_time(longest.held_back_s)
        where = f"rank {longest.rank}, iteration {longest.iteration}"
        lines += ["", f"a complete bucket waited for one before it: {mean} on average, {most} at most ({where})"]
    if report.unused:
        lines.append(f"{format_count(len(report.unused), 'parameter')} got no gradient in some backward")
    return "\n".join(lines)


def _row(pairs: str, mean: float | None, worst: float | None = None, where: str = "") -> Record:
    return {"Kendall's tau": pairs, "mean_tau": mean, "worst_tau": worst, "where": where}
