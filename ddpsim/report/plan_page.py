"""The report of a plan: which buckets to use where, what they gain, and both steps on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.collectives.calibration import Calibration
from ddpsim.common.tables import ResultTable, table_of
from ddpsim.common.tables.cells import ms
from ddpsim.common.units import format_count
from ddpsim.planning.rows import PlanReport, PlanRow
from ddpsim.planning.savings import WHERE
from ddpsim.prediction.document import leave_out_micro_batch
from ddpsim.report.assumptions import assumptions
from ddpsim.report.cap_curves import charts_of
from ddpsim.report.charts.model import StackedBar
from ddpsim.report.charts.timeline import timeline_from_trace
from ddpsim.report.model import BarChart, Report, StepsChart, Table, TimelineChart, draw_charts
from ddpsim.report.rows import MOST_ROWS, MOST_TIMELINES, bar, chart_over_nodes
from ddpsim.report.wording import format_one_step, format_share_band, format_unranked, format_where, rate, step


def plan_report(
    reports: Sequence[PlanReport],
    *,
    calibration: Calibration | None = None,
    notes: Sequence[str] = (),
    command: str = "",
    columns: Sequence[str] = (),
) -> Report:
    """Return the report of plans, one of each workload.

    Args:
        reports: of `ddpsim.plan`.
        calibration: the one of the plans' predictions.
        notes: what else a reader must know, a sentence each.
        command: the command line that makes the page.
        columns: of the table of steps, in the place of its own.
    """
    rows = [row for report in reports for row in report.rows]
    chosen = [row.chosen for row in rows]
    records, documents = [row.describe() for row in rows], [row.document() for row in rows]
    workloads = {p.workload.name: p.workload for p in chosen}.values()
    machines = {p.topology.name: p.topology for p in chosen}.values()
    backends = [p.options.backend_for(p.workload) for p in chosen]
    named = _Places(len(reports) > 1)
    changed_first = sorted(range(len(rows)), key=lambda each: rows[each].keep_default)
    shown = [rows[each] for each in sorted(changed_first[:MOST_TIMELINES])]
    drawn = format_one_step(max(p.options.accumulate for p in chosen))
    bands = "In brackets the 80 % band: from the 10th to the 90th percentile."
    return Report(
        title=f"Plan for {', '.join(report.name for report in reports)}",
        verdict=("; ".join(map(_fastest, reports)) + ".", " ".join((_advice(rows), *format_unranked(chosen)))),
        paste=_paste(rows, named),
        notes=tuple(notes),
        command=command,
        sections=(
            Table("Steps", table_of("plan: page", records[:MOST_ROWS], columns), bands),
            *_savings(rows, named),
            BarChart("Where the time goes", tuple(b for row in shown for b in _bars(row, named))),
            *draw_charts(
                "Curves",
                (*charts_of(rows), *chart_over_nodes(documents)),
                _CURVES_NOTE,
            ),
            TimelineChart(
                drawn,
                tuple(_choice(row, named) for row in shown),
                f"{drawn} {_TIMELINE_NOTE}",
                _choose_row(shown),
            ),
            *assumptions(documents, workloads, machines, calibration, backends),
            Table("All values", table_of("", list(map(leave_out_micro_batch, records[:MOST_ROWS]))), folded=True),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """How rows are named: with their workload where there are several."""

    several: bool

    def of(self, row: PlanRow) -> str:
        """Return where a row is."""
        return f"{row.chosen.workload.name} on {format_where(row.chosen)}" if self.several else format_where(row.chosen)


_CURVES_NOTE = (
    "A cap for every bucket against torch's default (1 MiB first, then 25 MiB). The star is what is advised, with the "
    "band of its gain: the same doubts are drawn for both, so that this band is narrower than that of a step, which is "
    "the whisker over node counts."
)

_TIMELINE_NOTE = (
    "of rank 0 under torch's default buckets and, where others were found, under these, on one axis of time. "
    "Small lines under the computation are gradients that come ready; each row below is a bucket."
)


def _fastest(report: PlanReport) -> str:
    """Return where a model trains fastest: a sentence without its end, for several may stand in one."""
    if report.best is None:
        return (
            f"{report.name}: no machine is ranked, for each row keeps the pace of a GPU that its machine does not have"
        )
    best = report.best.chosen
    unfit = ", though it does not fit its GPUs, as nothing here does" if report.best.fits is False else ""
    return f"{best.workload.name} trains fastest on {format_where(best)}{unfit}: {rate(best)}, a step of {step(best)}"


def _advice(rows: Sequence[PlanRow]) -> str:
    """Return what to do with the buckets, in one sentence."""
    changed = sorted((row for row in rows if not row.keep_default), key=lambda row: row.gain, reverse=True)
    if not changed:
        everywhere = "" if len(rows) == 1 else f" in all {len(rows)} rows"
        most = max((row.most for row in rows if row.trial is None), default=None)
        found = "" if most is None else f": of those tried the best saves {100 * most:.1f} %"
        return f"Keep torch's default buckets{everywhere}{found}."
    gain = format_share_band(changed[0].gain, changed[0].gain_low, changed[0].gain_high)
    kept = "; elsewhere torch's default stays" if len(rows) > len(changed) else ""
    more = f", and pay in {format_count(len(changed) - 1, 'more row')} below" if len(changed) > 1 else ""
    return f"Other buckets than torch's save {gain} of a step on {format_where(changed[0].chosen)}{more}{kept}."


def _paste(rows: Sequence[PlanRow], named: _Places) -> tuple[tuple[str, str], ...]:
    """Return the constructor calls with the rows they are for, calls in the order of the rows."""
    places: dict[str, list[str]] = {}
    for row in rows:
        places.setdefault(row.advice, []).append(named.of(row))
    trials = [(f"On {named.of(row)} {row.trial}:", row.trial.torch) for row in rows if row.trial is not None]
    return (*((f"On {', '.join(found)}:", advice) for advice, found in places.items()), *trials)


def _savings(rows: Sequence[PlanRow], named: _Places) -> tuple[Table, ...]:
    """Return where other buckets save a step, a row for each row that has some; nothing where none has."""
    changed = [row for row in rows if row.savings][:MOST_ROWS]
    cells = []
    for row in changed:
        saved = {saving.where: row.best.options.accumulate * saving.seconds for saving in row.savings}
        total = row.default.step_s[0] - row.best.step_s[0]
        label = f"{named.of(row)}{', not advised' if row.keep_default else ''}"
        cells.append((label, *(ms(saved.get(key, 0.0)) for key in WHERE), ms(total)))
    note = "Milliseconds of a step that the best buckets save, by where torch's default loses them."
    title, header = "Why other buckets take less", ("saved on", *WHERE.values(), "together ms")
    return (Table(title, ResultTable(header, tuple(cells)), note),) if cells else ()


def _bars(row: PlanRow, named: _Places) -> list[StackedBar]:
    default = bar(row.default.document(), f"{named.of(row)}: torch's default")
    return [default] if row.keep_default else [default, bar(row.best.document(), f"{named.of(row)}: plan")]


def _choice(row: PlanRow, named: _Places) -> StepsChart:
    """Return the default's step, and under it the plan's; where none is advised, that of the best one tried."""
    default = timeline_from_trace(row.default.summarised_trace, row.default.iteration_s, "torch's default")
    if row.best is row.default or row.best.plan.groups() == row.default.plan.groups():
        return StepsChart(named.of(row), (default,))
    label = "best found, not advised" if row.keep_default else "plan"
    best = timeline_from_trace(row.best.summarised_trace, row.best.iteration_s, f"{label}: {row.best.plan.torch}")
    return StepsChart(named.of(row), (default, best))


def _choose_row(rows: Sequence[PlanRow]) -> int:
    """Return the row whose timeline is shown first: the one with the largest gain, advised or not."""
    return max(range(len(rows)), key=lambda number: (not rows[number].keep_default, rows[number].best_gain))
