"""The report of a comparison: which machine to take, what it costs, what binds it, and its step.

`compare_report` lists the sections in the order of the page; each function below it makes one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ddpsim.collectives.calibration import Calibration
from ddpsim.common.tables import GBPS, table_of
from ddpsim.common.units import format_count
from ddpsim.planning.comparison import Comparison
from ddpsim.planning.comparison_row import ComparisonRow
from ddpsim.planning.ranking import describe_overlap
from ddpsim.prediction.document import accumulated, leave_out_micro_batch
from ddpsim.report.assumptions import assumptions
from ddpsim.report.charts.kinds import Step, step_charts
from ddpsim.report.charts.model import Axis, Chart, ChartLine, ChartPoint
from ddpsim.report.charts.timeline import number, timeline_from_trace
from ddpsim.report.model import BarChart, Charts, Report, StepsChart, Table, TimelineChart, draw_charts
from ddpsim.report.rows import MOST_ROWS, MOST_TIMELINES, Row, bar, chart_over_nodes, step_of
from ddpsim.report.wording import format_number_band, format_one_step, format_unranked, step

_CURVES_NOTE = (
    "Whiskers are 80 % bands. In cost over time, rows to the lower left are better, and the line joins those "
    "that no other beats in both."
)
_TIMELINE_NOTE = (
    "of rank 0. Small lines under the computation are gradients that come ready; each row below is a bucket."
)


def compare_report(
    comparison: Comparison,
    *,
    calibration: Calibration | None = None,
    notes: Sequence[str] = (),
    command: str = "",
    columns: Sequence[str] = (),
) -> Report:
    """Return the report of a comparison.

    Args:
        comparison: of `ddpsim.compare`.
        calibration: the one of its predictions.
        notes: what else a reader must know, a sentence each.
        command: the command line that makes the page.
        columns: of the table of machines, in the place of its own.
    """
    rows = comparison.rows
    records: list[Row] = [row.describe() for row in rows]
    drawn = format_one_step(max(map(accumulated, records), default=1))
    bests = {model: comparison.best_of(model) for model in comparison.models}
    found_best = [row for row in bests.values() if row is not None]
    first = next((number for number, row in enumerate(rows) if any(row is each for each in found_best[:1])), 0)
    picks = sorted(range(len(rows)), key=lambda each: (each != first, each))[:MOST_TIMELINES]
    predictions = [row.prediction for row in rows]
    return Report(
        title=f"{', '.join(comparison.models)} on {format_count(len({row.machine for row in rows}), 'machine')}",
        verdict=_verdict(comparison, bests),
        paste=tuple(_paste(row) for row in found_best),
        notes=tuple(notes),
        command=command,
        sections=(
            *_list_costs(records),
            Table("Machines side by side", table_of("compare", records[:MOST_ROWS], columns), _note(records)),
            *_list_others(comparison),
            BarChart("Where the time goes", tuple(bar(records[each], _label(records, each)) for each in sorted(picks))),
            *_curves(comparison, records),
            TimelineChart(drawn, tuple(_choice(rows, records, each) for each in picks), f"{drawn} {_TIMELINE_NOTE}"),
            *assumptions(
                [row.document() for row in rows],
                {p.workload.name: p.workload for p in predictions}.values(),
                {p.topology.name: p.topology for p in predictions}.values(),
                calibration,
                [p.options.backend_for(p.workload) for p in predictions],
            ),
            Table("All values", table_of("", list(map(leave_out_micro_batch, records[:MOST_ROWS]))), folded=True),
        ),
    )


def _differs(rows: Sequence[Row], key: str) -> bool:
    return len({str(row.get(key)) for row in rows}) > 1


def _note(rows: Sequence[Row]) -> str:
    left = f" The first {MOST_ROWS} of {len(rows)} rows." if len(rows) > MOST_ROWS else ""
    return f"In brackets the 80 % band: from the 10th to the 90th percentile.{left}"


def _list_costs(records: Sequence[Row]) -> list[Table]:
    """Return what rows cost whose machines have a price; nothing without prices."""
    paid = [record for record in records if record.get("cost_per_hour") is not None]
    if not paid:
        return []
    currencies = dict.fromkeys(str(row["cost_currency"]) for row in paid if row.get("cost_currency"))
    note = f"In {' and '.join(currencies)}{_format_dates(paid)}. In brackets the 80 % band."
    return [Table("What it costs", table_of("compare: costs", paid[:MOST_ROWS]), note)]


def _format_dates(rows: Sequence[Row]) -> str:
    dates = sorted({str(row["cost_date"]) for row in rows if row.get("cost_date")})
    return f", prices of {' and '.join(dates)}" if dates else ", prices as given, without a date"


def _label(rows: Sequence[Row], each: int) -> str:
    """Return what names a row among all: machine and nodes, and what else rows differ in."""
    row = rows[each]
    parts = [str(row[key]) for key in ("rate", "precision", "scheme") if _differs(rows, key)]
    cap = [f"cap {row['cap']} MiB" if row["cap"] != "default" else "default cap"] if _differs(rows, "cap") else []
    batch = [f"batch {row['batch_size']}"] if _differs(rows, "batch_size") else []
    model = [str(row["model"])] if _differs(rows, "model") else []
    return ", ".join(
        [*model, f"{format_count(int(number(row, 'nodes')), 'node')} of {row['machine']}", *parts, *cap, *batch]
    )


def _verdict(comparison: Comparison, bests: Mapping[str, ComparisonRow | None]) -> tuple[str, str]:
    """Return what is best and what lies within its band; what binds it, and what is not ranked, as the text says it."""
    verdicts = [_best(row) if row is not None else f"{model}: no machine is ranked" for model, row in bests.items()]
    first = ["; ".join(verdicts) + "."]
    for model in bests:
        if names := comparison.rivals(model):
            near = describe_overlap(names)
            first.append(f"{f'{model}: {near}' if len(bests) > 1 else near[0].upper() + near[1:]}.")
    best = next((row for row in bests.values() if row is not None), None)
    second = [] if best is None else [_bound(best, comparison)]
    return " ".join(first), " ".join([*second, *format_unranked(row.prediction for row in comparison.rows)])


def _best(row: ComparisonRow) -> str:
    scheme = row.prediction.options.scheme
    place = f"{format_count(row.nodes, 'node')} of {row.machine}" + (f" by {scheme}" if scheme != "ddp" else "")
    rate = f"{format_number_band(*row.samples_per_s)} samples a second"
    cost = row.per_million_samples
    if cost is None or row.price is None:
        return f"{row.model} trains fastest on {place}: {rate}, a step of {step(row.prediction)}"
    unit = row.price.currency
    return f"{row.model} trains for least on {place}: {format_number_band(*cost)} {unit} a million samples, at {rate}"


def _bound(best: ComparisonRow, comparison: Comparison) -> str:
    """Return what binds the best row, and which is faster where the best is the cheapest, in one sentence."""
    bound = best.bound
    by = " and ".join(each for each in (bound.by, bound.beside) if each)
    over = f" over {bound.link}" if "communication" in by and bound.link else ""
    exposed = f"{100 * bound.exposed_share:.1f} % of its step waits for communication"
    it = f"{best.model} there"
    it = f"{it} does not fit its GPUs, as nothing here does; it" if best.fits is False else it
    sentence = f"{it} is bound by {by}{over}, and {exposed}"
    ranked = comparison.list_ranked(best.model)
    rows = [row for row in ranked if row.fits is not False]
    fastest = max(rows or ranked, key=lambda row: row.samples_per_s[0])
    if fastest.samples_per_s[0] <= best.samples_per_s[0]:
        return f"{sentence}."
    cost = fastest.per_million_samples
    price = "" if cost is None or fastest.price is None else f" for {cost[0]:.4g} {fastest.price.currency} a million"
    rate = f"{fastest.samples_per_s[0]:,.0f} samples a second"
    return f"{sentence}; fastest is {format_count(fastest.nodes, 'node')} of {fastest.machine}, {rate}{price}."


def _paste(row: ComparisonRow) -> tuple[str, str]:
    return f"{row.model} on {format_count(row.nodes, 'node')} of {row.machine}:", row.prediction.plan.torch


_TITLES = {
    "break_even": "Break-even: when links and buckets stop to matter, and how far it scales",
    "placement": "As many ranks on one node as on two: the share of a step that one node saves",
    "no_sync": "Gradients reduced every so many steps: the share of a step that saves",
}


def _list_others(comparison: Comparison) -> list[Table]:
    """Return a table for each other list in the document, break-even points say."""
    tables = []
    for key, value in comparison.document().items():
        if key != "rows" and isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            tables.append(Table(_TITLES.get(key, key.replace("_", " ").capitalize()), table_of("", value)))
    return tables


def _curves(comparison: Comparison, rows: Sequence[Row]) -> tuple[Charts, ...]:
    scheme = _differs(rows, "scheme")
    named = [
        {
            **row,
            "workload": row["model"],
            "topology": f"{row['machine']}, {row['scheme']}" if scheme else row["machine"],
        }
        for row in rows
    ]
    charts = (*chart_over_nodes(named), *_chart_over_rates(comparison, rows), *_costs(comparison, rows))
    return draw_charts("Curves", charts, _CURVES_NOTE)


def _chart_over_rates(comparison: Comparison, rows: Sequence[Row]) -> tuple[Chart, ...]:
    """Return the step over each rate that was set, a chart a link, a line a model and machine at its most nodes."""
    pairs = [(row, own) for row, own in zip(comparison.rows, rows, strict=True) if row.link_rate is not None]
    charts: list[Chart] = []
    for link in dict.fromkeys(row.link for row, _ in pairs):
        of_link = [(row, own) for row, own in pairs if row.link == link]
        most = {(row.model, row.machine): row.nodes for row, _ in sorted(of_link, key=lambda pair: pair[0].nodes)}
        lines: dict[str, dict[str, Step]] = {}
        for row, own in sorted(of_link, key=lambda pair: pair[0].prediction.iteration_s):
            if row.nodes == most[row.model, row.machine]:
                model = f"{row.model}, " if len(comparison.models) > 1 else ""
                label = f"{model}{format_count(row.nodes, 'node')} of {row.machine}"
                rate = f"{(row.link_rate or 0.0) * GBPS:g}"
                lines.setdefault(label, {}).setdefault(rate, (rate, step_of(own)))
        if len({rate for steps in lines.values() for rate in steps}) > 1:
            steps = {label: list(lines[label].values()) for label in sorted(lines)}
            charts += step_charts({f"Step over the rate of {link}, with its band": steps}, Axis("rate", "Gb/s"))
    return tuple(charts)


def _costs(comparison: Comparison, rows: Sequence[Row]) -> tuple[Chart, ...]:
    """Return what a million samples cost over the hours they take, a chart a model; nothing without prices."""
    charts = []
    for model in comparison.models:
        machines: dict[str, list[ChartPoint]] = {}
        for each, row in enumerate(comparison.rows):
            if row.model == model and row.per_million_samples is not None:
                machines.setdefault(row.machine, []).append(_cost(row, _label(rows, each)))
        unit = next((row.price.currency for row in comparison.of(model) if row.price is not None), None)
        if unit is None:
            continue
        front = [_cost(row, _label(rows, comparison.rows.index(row))) for row in comparison.pareto(model)]
        bare = tuple(ChartPoint(point.x, point.y, label=point.label) for point in front)
        dots = (ChartLine(machine, tuple(points), "dots") for machine, points in machines.items())
        title = f"{model}: cost over time of a million samples"
        charts.append(Chart(title, Axis("hours"), Axis("cost", unit), (*dots, ChartLine(_UNBEATEN, bare))))
    return tuple(charts)


_UNBEATEN = "no other beats these"


def _cost(row: ComparisonRow, label: str) -> ChartPoint:
    middle, low, high = row.per_million_samples or (0.0, 0.0, 0.0)
    return ChartPoint(1e6 / row.samples_per_s[0] / 3600, middle, low, high, label)


def _choice(rows: Sequence[ComparisonRow], records: Sequence[Row], each: int) -> StepsChart:
    prediction = rows[each].prediction
    step = timeline_from_trace(prediction.summarised_trace, prediction.iteration_s, prediction.plan.torch)
    return StepsChart(_label(records, each), (step,))
