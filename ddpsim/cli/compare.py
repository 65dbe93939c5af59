"""`ddpsim compare`: machines, node counts and links side by side, with what they cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.comparison_text import text
from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.destination import (
    STANDARD_OUTPUT,
    ReportFile,
    check_outputs,
    command_line,
    deliver_report,
    plot_option,
)
from ddpsim.cli.expand import expand
from ddpsim.cli.keeping import make_resumable
from ddpsim.cli.options import GpusPerNode, MachineNames, NodeCounts, Schemes, SweptCaps, parse_swept_caps
from ddpsim.cli.output import TableOutput, note
from ddpsim.common.errors import InputError, list_few
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Section
from ddpsim.common.options.text import counts
from ddpsim.common.workers.asked import Workers
from ddpsim.schedules.named import schemes_named
from ddpsim.simulation.jobs.simulated import Options

if TYPE_CHECKING:
    from ddpsim.planning.comparison import Comparison
    from ddpsim.planning.comparison_row import ComparisonRow
    from ddpsim.planning.goal import RateGoal


_NAMED = 4
"""Machines that a note names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareArguments:
    """What `compare` is asked beside a job: machines, what varies, prices and goals, where to write."""

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
    given: ConstantOptions,
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
    asked = ComparisonRequest(
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
        calibration=given.calibration_in_force(),
    )
    with make_resumable(by, len(asked.points), arguments.out, arguments.report) as done:
        rows = done.compute(
            comparison_row,
            asked.points,
            name_labelled,
            what="predictions",
            notes=lambda row: row.prediction.notes,
            part=lambda rows: _lines(asked.price(rows)),
        )
        found = asked.collect(rows)
        if arguments.advice:
            found = asked.advise(found, partial(done.compute, what="machines' advice"))
        done.deliver(lambda: _lines(found.rows))
    if arguments.plot:
        draw(found, arguments.plot)
    deliver_report(
        arguments.report,
        lambda pages: pages.compare_report(
            found,
            calibration=given.calibration_in_force(),
            notes=sorted(done.told),
            command=command_line(context),
            columns=output.asked,
        ),
    )
    output.emit_rows(
        found.document(),
        "compare",
        lambda: [row.describe() for row in found.rows],
        lambda: text(found, bound, output.asked),
        aside=STANDARD_OUTPUT in (arguments.out, arguments.report),
    )


def _lines(rows: Sequence[ComparisonRow]) -> str:
    return "".join(json.dumps(row.document(), allow_nan=False) + "\n" for row in rows)


def draw(found: Comparison, path: str) -> None:
    """Draw the step over the node count, a panel a model, a line a machine with what else is varied there."""
    from ddpsim.common.tables import cell_of, heading_of, list_shown
    from ddpsim.common.tables.declared import TELLING
    from ddpsim.report.plots import plot_steps

    panels: dict[str, dict[str, list[tuple[str, tuple[float, float, float]]]]] = {}
    for model in found.models:
        rows = found.of(model)
        records = [row.describe() for row in rows]
        told = [name for name in list_shown("compare", records) if name in TELLING]
        lines = panels.setdefault(model, {})
        for row, record in zip(rows, records, strict=True):
            label = ", ".join([row.machine, *(f"{heading_of(each)} {cell_of(record, each)}" for each in told)])
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
