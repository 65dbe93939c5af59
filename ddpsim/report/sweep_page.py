"""The report of a sweep: the step over bucket caps and node counts, and its longest and shortest on one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpsim.common.tables import table_of
from ddpsim.common.units import format_count, format_time
from ddpsim.prediction.document import accumulated, describe_row, flat, leave_out_micro_batch
from ddpsim.report.assumptions import assumptions
from ddpsim.report.charts.kinds import step_charts
from ddpsim.report.charts.model import Axis, Chart, ChartLine, ChartPoint, categories
from ddpsim.report.charts.timeline import TimelineStep, number, timeline_from_document
from ddpsim.report.model import BarChart, Charts, Report, StepsChart, Table, TimelineChart, draw_charts
from ddpsim.report.rows import MOST_ROWS, MOST_TIMELINES, Row, bar, chart_over_nodes, step_of
from ddpsim.report.wording import format_each, format_one_step, format_time_band
from ddpsim.simulation.job import Job


def sweep_report(
    documents: Sequence[Row],
    caps: Sequence[str],
    job: Job,
    *,
    backend: str,
    notes: Sequence[str] = (),
    command: str = "",
    columns: Sequence[str] = (),
) -> Report:
    """Return the report of a sweep over bucket caps and node counts.

    Args:
        documents: predict documents, at least one.
        caps: the bucket caps of each, in few words.
        job: a job with what all of them have in common.
        backend: of their process groups.
        notes: sentences for the reader, under the verdict.
        command: the command line that makes the page.
        columns: those of the table of steps, in place of its own.
    """
    workload, machine = job.workload, job.topology
    rows: list[Row] = [
        {**describe_row(document), "cap": cap, "document": document}
        for document, cap in zip(documents, caps, strict=True)
    ]
    groups = _group_by_nodes(rows)
    drawn_groups = sorted(groups, key=_spread, reverse=True)[:MOST_TIMELINES]
    drawn_groups = [group for group in groups if group in drawn_groups]
    shown = sorted(rows, key=lambda row: -number(row, "samples_per_s"))[:MOST_ROWS] if len(rows) > MOST_ROWS else rows
    left = f" The fastest {MOST_ROWS} of {len(rows)} rows; the file of -o has all." if len(rows) > MOST_ROWS else ""
    drawn = format_one_step(accumulated(rows[0]))
    note = f"In brackets the 80 % band: from the 10th to the 90th percentile.{left}"
    return Report(
        title=f"Sweep of {workload.name} on {machine.name}",
        verdict=(_best(rows), _change_text(groups)),
        notes=tuple(notes),
        command=command,
        sections=(
            Table("Steps", table_of("sweep: page", shown, columns), note),
            BarChart(
                "Where the time goes", tuple(bar(row, _place(row)) for row in map(_fastest, drawn_groups)), _BEST_NOTE
            ),
            *_curves(rows, groups),
            TimelineChart(
                drawn,
                tuple(_choice(group) for group in drawn_groups),
                f"{drawn} {_TIMELINE_NOTE}",
                drawn_groups.index(_find_widest(groups)),
            ),
            *assumptions(documents, [workload], [machine], job.calibration, [backend]),
            Table(
                "All values",
                table_of("", [leave_out_micro_batch(flat(row) | {"memory": row["memory"]}) for row in shown]),
                folded=True,
            ),
        ),
    )


_BEST_NOTE = "With the fastest cap at each node count; the line below a bar is its 80 % band."
_TIMELINE_NOTE = (
    "of rank 0 under the caps that make it longest and shortest, on one axis of time: its parts one after "
    "another, medians of each bucket's times below."
)


def _group_by_nodes(rows: Sequence[Row]) -> list[list[Row]]:
    groups: dict[float, list[Row]] = {}
    for row in rows:
        groups.setdefault(number(row, "nodes"), []).append(row)
    return list(groups.values())


def _fastest(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: number(row, "step_s"))


def _place(row: Row) -> str:
    return f"{format_count(int(number(row, 'nodes')), 'node')}, {_cap(row)}"


def _cap(row: Row) -> str:
    return {"default": "torch's default buckets", "plan": "the plan's buckets"}.get(
        str(row["cap"]), f"cap {row['cap']} MiB"
    )


def _best(rows: Sequence[Row]) -> str:
    best = max(rows, key=lambda row: number(row, "samples_per_s"))
    if best["pace_kept"]:
        kept = f"{best['workload']} keeps the pace of {best['compute_device']}, which {best['topology']} does not have"
        return f"{kept}: its steps say what that device would do there."
    step = format_time_band(*(number(best, key) for key in ("step_s", "step_low_s", "step_high_s")))
    rate = f"{number(best, 'samples_per_s'):,.0f} samples a second"
    step += format_each(accumulated(best), number(best, "micro_batch_s"))
    return f"{best['workload']} trains fastest on {_format_where(best)} with {_cap(best)}: {rate}, a step of {step}."


def _format_where(row: Row) -> str:
    return f"{format_count(int(number(row, 'nodes')), 'node')} of {row['topology']}"


def _change_text(groups: Sequence[list[Row]]) -> str:
    """Return what the swept quantity changes, in one sentence: the cap where several were tried, else the nodes."""
    slow, fast = _find_slowest(_find_widest(groups)), _fastest(_find_widest(groups))
    if slow is not fast:
        share = number(slow, "step_s") / number(fast, "step_s") - 1
        times = f"{format_time(number(fast, 'step_s'))} with {_cap(fast)}, {format_time(number(slow, 'step_s'))}"
        return (
            f"The cap moves a step by at most {100 * share:.1f} %, on {_format_where(fast)}: {times} with {_cap(slow)}."
        )
    if len(groups) > 1:
        ends = [_fastest(group) for group in (groups[0], groups[-1])]
        efficient = " and ".join(f"{100 * number(r, 'scaling_efficiency'):.1f} % on {_format_where(r)}" for r in ends)
        return f"A rank keeps {efficient} of its speed without DDP."
    exposed, step = number(fast, "step_exposed_comm_s"), number(fast, "step_s")
    return f"Waiting for communication takes {format_time(exposed)} of it, {100 * exposed / step:.1f} %."


def _spread(rows: Sequence[Row]) -> float:
    return number(_find_slowest(rows), "step_s") / number(_fastest(rows), "step_s")


def _find_widest(groups: Sequence[list[Row]]) -> list[Row]:
    """Return the node count at which the cap changes a step most."""
    return max(groups, key=_spread)


def _find_slowest(rows: Sequence[Row]) -> Row:
    return max(rows, key=lambda row: number(row, "step_s"))


def _curves(rows: Sequence[Row], groups: Sequence[list[Row]]) -> tuple[Charts, ...]:
    """Return the step over node counts and over caps, as far as there are several."""
    charts = (*chart_over_nodes(rows), *_chart_over_caps(groups))
    note = "Whiskers are the 80 % band; where steps are shown beside the fastest, the table has their bands."
    return draw_charts("Curves", charts, note)


def _chart_over_caps(groups: Sequence[list[Row]]) -> tuple[Chart, ...]:
    """Return the step over the cap: with its band of one node count, of several each beside its fastest."""
    ticks = tuple(dict.fromkeys(str(row["cap"]) for group in groups for row in group))
    if len(ticks) < 2:
        return ()
    if len(groups) == 1:
        steps = [(str(row["cap"]), step_of(row)) for row in groups[0]]
        return step_charts({"Step over caps, with its band": {"step": steps}}, Axis("cap", "MiB"))
    lines = tuple(
        ChartLine(format_count(int(number(g[0], "nodes")), "node"), _compare_to_fastest(g, ticks)) for g in groups
    )
    x, y = Axis("cap", "MiB", ticks=categories(ticks)), Axis("step over the fastest", level=1.0)
    return (Chart("Step over caps, beside the fastest", x, y, lines),)


def _compare_to_fastest(rows: Sequence[Row], ticks: Sequence[str]) -> tuple[ChartPoint, ...]:
    base = number(_fastest(rows), "step_s")
    return tuple(ChartPoint(ticks.index(str(row["cap"])), number(row, "step_s") / base) for row in rows)


def _document(row: Row) -> Mapping[str, object]:
    document = row["document"]
    return document if isinstance(document, Mapping) else row


def _choice(rows: Sequence[Row]) -> StepsChart:
    slow, fast = _find_slowest(rows), _fastest(rows)
    # One micro-batch is drawn, whose buckets are launched in it.
    steps: list[TimelineStep] = [
        timeline_from_document(_document(row), _cap(row)) for row in ([fast] if slow is fast else [slow, fast])
    ]
    return StepsChart(_format_where(fast), tuple(steps))
