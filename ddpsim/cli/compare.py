"""`ddpsim compare`: machines, node counts and links side by side, with what they cost.

`compare` is the command; `text`, before it, is its answer in lines of at most 100 characters: the step of each machine,
its cost, and under the tables which machine to take and why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.destination import STANDARD_OUTPUT, ReportFile, check_outputs, command_line, deliver_report, plot_option
from ddpsim.cli.expand import expand
from ddpsim.cli.keeping import make_resumable
from ddpsim.cli.options import GpusPerNode, MachineNames, NodeCounts, Schemes, SweptCaps, parse_swept_caps
from ddpsim.cli.output import TableOutput, note
from ddpsim.common.errors import InputError, list_few
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Section
from ddpsim.common.options.text import counts
from ddpsim.common.tables import break_line, text_of
from ddpsim.common.tables.cells import format_band, format_rate, format_short
from ddpsim.common.units import format_count, format_time
from ddpsim.common.workers.requests import Workers
from ddpsim.schedules.named import schemes_named
from ddpsim.simulation.jobs.simulated import Options

if TYPE_CHECKING:
    from ddpsim.planning.advice import Advice
    from ddpsim.planning.break_even import BreakEven
    from ddpsim.planning.comparison import Comparison
    from ddpsim.planning.comparison_row import ComparisonRow
    from ddpsim.planning.goal import RateGoal

_WHAT = {
    "hidden": "communication is hidden",
    "link": "faster NICs gain < 1 %",
    "buckets": "buckets",
}


def text(comparison: Comparison, efficiency: float, columns: Sequence[str] = ()) -> str:
    """Return the comparison as tables and the lines under them, a part a model.

    Args:
        efficiency: down to which break-evens follow nodes.
        columns: those of one table, in place of the two.
    """
    return "\n\n".join("\n".join(_part(comparison, model, efficiency, columns)) for model in comparison.models)


def _part(comparison: Comparison, model: str, efficiency: float, columns: Sequence[str]) -> Iterator[str]:
    rows = comparison.of(model)
    records = [row.describe() for row in rows]
    yield _title(model, rows)
    yield ""
    yield text_of("compare", records, columns)
    if any(row.price is not None for row in rows):
        yield ""
        yield _prices(rows)
        if not columns:
            priced = [record for row, record in zip(rows, records, strict=True) if row.price is not None]
            yield f"\n{text_of('compare: costs', priced)}"
    yield ""
    yield from _verdict(comparison, model, rows)
    for advice in comparison.advice:
        if advice.row.model == model and (lines := list(_format_advice(advice, efficiency))):
            yield ""
            yield _format_advised_row(advice.row)
            yield from (break_line(f"    {line}", "      ") for line in lines)


def _title(model: str, rows: Sequence[ComparisonRow]) -> str:
    """Return model, batch and precision where all rows have the same, and whose pace it is where that was estimated."""
    parts = [model]
    precisions = {row.prediction.workload.precision for row in rows}
    batches = {row.batch_size for row in rows}
    if len(precisions) == 1:
        parts.append(precisions.pop())
    if len(batches) == 1:
        parts.append(f"batch {batches.pop()} a GPU")
    if all(row.prediction.workload.estimated for row in rows):
        kept = dict.fromkeys(row.prediction.workload.device_label for row in rows if row.prediction.other_devices)
        parts.append(f"compute times estimated for {', '.join(kept) or 'each GPU'}")
    return ", ".join(parts)


def _prices(rows: Sequence[ComparisonRow]) -> str:
    """Return the prices with their days, as they were given."""
    given = {row.machine: row.price for row in rows if row.price is not None}
    said = [f"    {m} {p.per_hour:g} {p.currency}/h, {p.date or 'no date given'}" for m, p in given.items()]
    return "\n".join(["prices of a node, as given:", *said])


def _verdict(comparison: Comparison, model: str, rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield which is best and whose bands leave that open, and which rows are not in question."""
    from ddpsim.planning.ranking import describe_borrowed, list_unranked

    ranked, best = comparison.list_ranked(model), comparison.best_of(model)
    if best is not None:
        yield from _format_ranking(comparison, best, [row for row in ranked if row.fits is not False] or ranked)
    yield from describe_borrowed(row.prediction for row in rows)
    if unfit := [row for row in rows if row.fits is False]:
        yield f"does NOT fit in GPU memory: {', '.join(dict.fromkeys(map(_format_where, unfit)))}"
    for why, kept in list_unranked(row.prediction for row in rows):
        places = (_format_where(row) for row in rows if any(row.prediction is each for each in kept))
        yield f"not ranked: {', '.join(dict.fromkeys(places))}: {why}"


def _format_ranking(comparison: Comparison, best: ComparisonRow, fitting: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield which of the rows that may fit is fastest, which is cheapest, and which meets the goal."""
    from ddpsim.planning.ranking import describe_overlap

    fastest = max(fitting, key=lambda row: row.samples_per_s[0])
    yield f"fastest: {_format_where(fastest)}, {format_short(fastest.samples_per_s[0])} samples/s"
    near = [f"    {describe_overlap(names)}"] if (names := comparison.rivals(best.model)) else []
    cost = best.per_million_samples
    if cost is not None and best.price is not None:
        what = "cheapest" if comparison.goal is None else f"cheapest that meets {comparison.goal.describe()}"
        yield f"{what}: {_format_where(best)}, {format_band(cost)} {best.price.currency} a million samples"
        yield from _goal_lines(best, comparison.goal)
        yield from near
        yield "Pareto front (*): no other row is both cheaper and faster"
        if unpriced := dict.fromkeys(row.machine for row in fitting if row.price is None):
            yield f"no price is given, so not compared by cost: {', '.join(unpriced)}"
    elif comparison.goal is not None:
        yield from near
        yield f"meets {comparison.goal.describe()}: {_format_where(best)}"
        yield from _goal_lines(best, comparison.goal)
    else:
        yield from near


def _goal_lines(best: ComparisonRow, goal: RateGoal | None) -> Iterator[str]:
    """Yield what the best row comes to in the terms of the goal, and whether its whole band meets it."""
    if goal is not None:
        sure = "its whole band meets it" if goal.is_met_by(best.samples_per_s[1]) else "its band's slow end misses it"
        yield f"    {goal.describe_reached(best.samples_per_s)}; {sure}"


def _format_where(row: ComparisonRow) -> str:
    parts = [f"{format_count(row.nodes, 'node')} of {row.machine}"]
    if row.rate is not None:
        parts.append(row.rate)
    return ", ".join(parts)


def _format_advised_row(row: ComparisonRow) -> str:
    at = "" if row.rate is None else f", {row.rate}"
    return f"{row.machine}, batch {row.batch_size}, {row.prediction.workload.precision}{at}"


def _format_advice(advice: Advice, efficiency: float) -> Iterator[str]:
    """Yield what is worth knowing of a machine, a line each."""
    for found in advice.break_even:
        yield _break_even(found, efficiency)
    if advice.apart is not None:
        cost = advice.apart
        shares = _shares(cost.cost)
        kept = "keep them on one node" if cost.cost[0] > 0 else "one node gains nothing"
        one_s, two_s = (cost.accumulate * each_s for each_s in (cost.together_s, cost.apart_s))
        times = f"{format_time(one_s)} a step on one node, {format_time(two_s)} on two"
        yield f"{cost.ranks} ranks take {times}: {kept}, step {shares} shorter"
    for each in advice.accumulating:
        saved = f"saves {_shares(each.saving)} of each one's time on {_nodes(advice.row)}"
        yield f"accumulating gradients (no_sync) over {each.every} micro-batches a step {saved}"


def _break_even(point: BreakEven, efficiency: float) -> str:
    if point.what == "efficiency":
        what = f"scaling efficiency of {efficiency:.0%} or more".replace("%", " %")
        expected = point.why if point.value is None else f"expected up to {format_count(round(point.value), 'node')}"
        sure = "certain on no number" if point.low is None else f"certain up to {point.low:.0f}"
        not_sure = "ruled out on none" if point.high is None else f"ruled out beyond {point.high:.0f}"
        return f"{what}: {expected}; {sure}, {not_sure}"
    what = f"{_WHAT[point.what]} on {_nodes(point.row)}"
    if point.advised is not None:
        return f"{what}: {_plan_at_own_rate(point)}; {_where_buckets_matter(point)}"
    expected = point.why if point.value is None else f"expected from {format_rate(point.value)} a NIC on"
    sure = "certain at no rate" if point.high is None else f"certain from {format_rate(point.high)} on"
    not_sure = "ruled out at none" if point.low is None else f"ruled out below {format_rate(point.low)}"
    return f"{what}: {expected}" + (f"; {sure}, {not_sure}" if point.value is not None or point.high else "")


def _plan_at_own_rate(point: BreakEven) -> str:
    """Return what `plan` says of buckets at the machine's own rate."""
    from ddpsim.planning.worth import arguments_of, format_gain

    line, gain = point.advised or ("", (0.0, 0.0, 0.0))
    buckets = f"{arguments_of(line)}, {format_gain(*gain, 'shorter step ')}" if gain[0] else "keep torch's default"
    return f"{buckets}; {point.trial}" if point.trial else buckets


def _where_buckets_matter(point: BreakEven) -> str:
    if point.value is None or point.low is None or point.high is None:
        return point.why
    between = f"between {format_rate(point.low)} and {format_rate(point.high)}"
    return f"other sizes gain under 1 % from about {format_rate(point.value)} a NIC on ({between})"


def _shares(band: tuple[float, float, float]) -> str:
    """Return a share with its band in percent: `82 % (73 to 95)`."""
    return "{:.0f} % ({:.0f} to {:.0f})".format(*(100 * share for share in band))


def _nodes(row: ComparisonRow) -> str:
    return format_count(row.nodes, "node")


_NAMED = 4
"""Machines that a note names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareArguments:
    """Arguments of `compare` next to those of a job: machines, what varies, prices and goals, where to write."""

    workload: Annotated[
        list[str],
        typer.Option(metavar="W[@GPU]", help="Workload or file, put on each machine's own GPU; may be repeated."),
        Section.JOB,
    ]
    topology: MachineNames
    nodes: NodeCounts = None
    gpus_per_node: GpusPerNode = None
    batch_size: Annotated[
        str | None,
        typer.Option(metavar="8,16,32", help="Samples a GPU and step, estimated anew. [the workload's own]"),
        Section.JOB,
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(metavar="fp32,amp", help="Precisions, estimated anew. [the workload's own]"),
        Section.JOB,
    ] = None
    link_rate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[LINK=]25,100,400Gb/s",
            help="Rates of the NICs, or of the links of that name or kind; may be repeated. [as declared]",
        ),
        Section.MACHINE,
    ] = None
    bucket_cap_mb: SweptCaps = None
    schemes: Schemes = None
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="T=32.77USD/h", help="An hour of one node, @2026-11-22 behind it; may be repeated."),
        Section.COST,
    ] = None
    prices: Annotated[
        str | None, typer.Option(metavar="FILE.yaml", help="Prices with their currency and date."), Section.COST
    ] = None
    samples_per_epoch: Annotated[
        float | None, typer.Option(metavar="N", help="Add time and cost of an epoch of so many samples."), Section.COST
    ] = None
    epochs: Annotated[float, typer.Option(metavar="E", help="Epochs until the deadline."), Section.COST] = 1.0
    deadline: Annotated[
        str | None, typer.Option(metavar="6h", help="Find the cheapest that is through by then."), Section.COST
    ] = None
    samples_per_second: Annotated[
        float | None, typer.Option(metavar="R", help="Find the cheapest that is as fast."), Section.COST
    ] = None
    advice: Annotated[
        bool,
        typer.Option("--advice", help="Add break-even rates and node counts, placement and no_sync."),
        Section.COST,
    ] = False
    efficiency: Annotated[
        str, typer.Option(metavar="80%", help="Scaling efficiency that --advice follows nodes down to."), Section.COST
    ] = "80%"
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE.jsonl", help="Write a row a line; - is standard output."),
        Section.OUTPUT,
    ] = None
    plot: Annotated[
        str | None, plot_option("Draw steps with their bands over node counts, a panel a model."), Section.OUTPUT
    ] = None
    report: ReportFile = None


@expand
def compare(
    arguments: CompareArguments,
    options: Options,
    constants: ConstantOptions,
    by: Workers,
    output: TableOutput,
    context: typer.Context,
) -> None:
    """Compare machines before buying: time, efficiency, memory, links and cost, each with its band.

    A workload is put on each machine's own GPU; NAME@recorded keeps the pace of its file. What is done before
    a comparison is stopped lies beside -o or --report, and the same command goes on from there.
    """
    from ddpsim.common.options.rates import link_rates, share
    from ddpsim.planning.compare import ComparisonRequest
    from ddpsim.planning.comparison_row import comparison_row, name_labelled
    from ddpsim.planning.prices import machine_names, prices_of, read_prices
    from ddpsim.topology.spec import load_topology

    check_outputs(output, out=arguments.out, plot=arguments.plot, report=arguments.report)
    bound = share(arguments.efficiency, "efficiency")
    goal = _goal(arguments.deadline, arguments.samples_per_second, arguments.samples_per_epoch, arguments.epochs)
    machines = [(name, load_topology(name)) for name in arguments.topology]
    listed = {} if arguments.prices is None else read_prices(arguments.prices)
    names = machine_names((name, machine.name) for name, machine in machines)
    known = prices_of(arguments.price or [], listed, names)
    if others := [name for name in listed if name not in names]:
        note(f"note: {arguments.prices} has prices of machines that are not compared: {list_few(others, _NAMED)}")
    caps = parse_swept_caps(arguments.bucket_cap_mb, options)
    request = ComparisonRequest(
        workloads=arguments.workload,
        topologies=arguments.topology,
        nodes=[None] if arguments.nodes is None else counts(arguments.nodes, "nodes"),
        batch_sizes=[None] if arguments.batch_size is None else counts(arguments.batch_size, "batch_size", "8,16,32"),
        precisions=[None] if arguments.precision is None else arguments.precision.split(","),
        link_rates=link_rates(arguments.link_rate or []) or [None],
        caps=caps,
        schemes=None if arguments.schemes is None else schemes_named(arguments.schemes),
        prices=known,
        samples_per_epoch=arguments.samples_per_epoch,
        goal=goal,
        efficiency=bound,
        options=options,
        gpus_per_node=arguments.gpus_per_node,
        calibration=constants.calibration_in_force(),
    )
    with make_resumable(by, len(request.points), arguments.out, arguments.report) as done:
        rows = done.compute(
            comparison_row,
            request.points,
            name_labelled,
            what="predictions",
            notes=lambda row: row.prediction.notes,
            part=lambda rows: _lines(request.price(rows)),
        )
        comparison = request.collect(rows)
        # Advice needs predictions beyond the rows (break-even points): they go to the same journal.
        if arguments.advice:
            comparison = request.advise(comparison, partial(done.compute, what="machines' advice"))
        done.deliver(lambda: _lines(comparison.rows))
    if arguments.plot:
        draw(comparison, arguments.plot)
    deliver_report(
        arguments.report,
        lambda pages: pages.compare_report(
            comparison,
            calibration=constants.calibration_in_force(),
            notes=sorted(done.notes_printed),
            command=command_line(context),
            columns=output.column_names,
        ),
    )
    output.emit_rows(
        comparison.document(),
        "compare",
        lambda: [row.describe() for row in comparison.rows],
        lambda: text(comparison, bound, output.column_names),
        aside=STANDARD_OUTPUT in (arguments.out, arguments.report),
    )


def _lines(rows: Sequence[ComparisonRow]) -> str:
    return "".join(json.dumps(row.document(), allow_nan=False) + "\n" for row in rows)


def draw(comparison: Comparison, path: str) -> None:
    """Draw the step over the node count, a panel a model, a line a machine with what else is varied there."""
    from ddpsim.common.tables import cell_of, heading_of, list_shown
    from ddpsim.common.tables.declared import TELLING
    from ddpsim.report.plots import plot_steps

    panels: dict[str, dict[str, list[tuple[str, tuple[float, float, float]]]]] = {}
    for model in comparison.models:
        rows = comparison.of(model)
        records = [row.describe() for row in rows]
        distinguishing = [name for name in list_shown("compare", records) if name in TELLING]
        lines = panels.setdefault(model, {})
        for row, record in zip(rows, records, strict=True):
            label = ", ".join(
                [row.machine, *(f"{heading_of(each)} {cell_of(record, each)}" for each in distinguishing)]
            )
            lines.setdefault(label, []).append((str(row.nodes), row.step_s))
    plot_steps(panels, path, "nodes")
    note(f"wrote {path}")


def _goal(
    deadline: str | None, samples_per_second: float | None, samples_per_epoch: float | None, epochs: float
) -> RateGoal | None:
    from ddpsim.common.units import parse_duration
    from ddpsim.planning.goal import RateGoal

    for name, value in (
        ("samples_per_second", samples_per_second),
        ("samples_per_epoch", samples_per_epoch),
        ("epochs", epochs),
    ):
        if value is not None and not 0 < value < 1e18:
            raise InputError(f"{value:g} is out of range", place=name, remedy="give a number above 0")
    goal = {"deadline": deadline, "samples_per_second": samples_per_second, "samples_per_epoch": samples_per_epoch}
    refuse_excluded(None, "compare", beside=goal)
    if deadline is not None:
        assert samples_per_epoch is not None
        return RateGoal.by(parse_duration(deadline, "deadline"), samples_per_epoch, epochs)
    return None if samples_per_second is None else RateGoal(samples_per_second)
