"""`ddpsim sweep`: bucket caps at node counts, computed by a pool of workers and journalled as they are done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from ddpsim.cli.options import (
    GpusPerNode,
    NodeCounts,
    PlanFile,
    SweptCaps,
    TopologyName,
    WorkloadName,
    parse_swept_caps,
    read_plan,
    refuse_beside_plan,
)
from ddpsim.cli.output import TableOutput, note
from ddpsim.common.options.option import Section
from ddpsim.common.options.text import counts
from ddpsim.common.tables import text_of
from ddpsim.common.units import format_count
from ddpsim.common.workers.requests import Workers
from ddpsim.simulation.jobs.simulated import Options

if TYPE_CHECKING:
    from ddpsim.bucketing import BucketCaps
    from ddpsim.prediction.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepArguments:
    """Arguments of `sweep` next to those of a job: a workload on a machine, sizes, caps, where to write."""

    workload: WorkloadName
    topology: TopologyName
    nodes: NodeCounts = None
    gpus_per_node: GpusPerNode = None
    bucket_cap_mb: SweptCaps = None
    plan: PlanFile = None
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="FILE.jsonl", help="Write one predict document a line; - is standard output."
        ),
        Section.OUTPUT,
    ] = None
    plot: Annotated[
        str | None, plot_option("Draw steps with their bands over bucket caps, a line a node count."), Section.OUTPUT
    ] = None
    report: ReportFile = None


@expand
def sweep(
    arguments: SweepArguments,
    options: Options,
    constants: ConstantOptions,
    by: Workers,
    output: TableOutput,
    context: typer.Context,
) -> None:
    """Predict every bucket cap at every node count.

    For example --nodes 1,2,4 --bucket-cap-mb 1,5,25,100. What is done before a sweep is stopped lies beside -o or
    --report, and the same command goes on from there.
    """
    from ddpsim.planning.sweep import list_swept, name_swept, swept_row
    from ddpsim.prediction.models import Model
    from ddpsim.simulation.job import Job
    from ddpsim.topology.spec import load_topology

    check_outputs(output, out=arguments.out, plot=arguments.plot, report=arguments.report)
    refuse_beside_plan(arguments.plan, options, arguments.bucket_cap_mb)
    machine = load_topology(arguments.topology)
    step = Model.of(arguments.workload, options)
    model = step.on(machine, options=options)
    moved = model.name != step.source.name  # its times were carried over to the machine's GPU
    caps = list(dict.fromkeys(parse_swept_caps(arguments.bucket_cap_mb, options) or [options.caps]))
    node_counts = [None] if arguments.nodes is None else list(dict.fromkeys(counts(arguments.nodes, "nodes")))
    backend = options.on(model, machine).backend_for(model)
    # Rows that are only printed need no whole document, which costs as much as a prediction.
    shown_alone = not (output.as_json or output.column_names or arguments.out or arguments.report or arguments.plot)
    calibration = constants.calibration_in_force(backend)
    job = Job(model, machine, None, arguments.gpus_per_node, options, calibration)
    base = replace(options, caps=caps[0], plan=read_plan(arguments.plan, model.parameters))
    swept = list_swept(node_counts, caps, base)
    with make_resumable(by, len(swept), arguments.out, arguments.report) as done:
        rows = done.compute(
            partial(swept_row, job, whole=not shown_alone),
            swept,
            name_swept,
            what="predictions",
            notes=lambda row: row[0].notes,
            part=_lines,
        )
        done.deliver(lambda: _lines(rows))
    documents = [document for _, document in rows]
    labels = [_caps_text(cap, arguments.plan) for cap in caps] * len(node_counts)
    if arguments.plot:
        _draw(documents, labels, f"{model.name}\non {machine.name}", arguments.plot)
    deliver_report(
        arguments.report,
        lambda pages: pages.sweep_report(
            documents,
            labels,
            job,
            backend=backend,
            notes=sorted(done.notes_printed),
            command=command_line(context),
            columns=output.column_names,
        ),
    )
    output.emit_rows(
        {"rows": documents} if output.as_json else None,
        "sweep",
        lambda: _rows(documents, labels),
        lambda: _text(_rows(documents, labels), moved=moved, columns=output.column_names),
        aside=STANDARD_OUTPUT in (arguments.out, arguments.report),
    )


def _lines(rows: Sequence[tuple[Prediction, Mapping[str, object]]]) -> str:
    return "".join(json.dumps(document, allow_nan=False) + "\n" for _, document in rows)


def _draw(documents: Sequence[Mapping[str, Any]], labels: Sequence[str], title: str, path: str) -> None:
    """Draw the step over the bucket cap, a line a node count."""
    from ddpsim.report.charts import Axis
    from ddpsim.report.plots import plot_steps

    lines: dict[str, list[tuple[str, tuple[float, float, float]]]] = {}
    for document, label in zip(documents, labels, strict=True):
        step = tuple(float(document[key]) for key in ("iteration_s", "iteration_low_s", "iteration_high_s"))
        ranks = f"{format_count(document['nodes'], 'node')}, {format_count(document['world_size'], 'rank')}"
        lines.setdefault(ranks, []).append((label, (step[0], step[1], step[2])))
    plot_steps({title: lines}, path, Axis("bucket cap", "MiB"))
    note(f"wrote {path}")


def _caps_text(caps: BucketCaps, plan: str | None) -> str:
    """Return the caps in few words: `default`, `25`, `1,25`, or that a plan file has them."""
    if plan is not None:
        return "plan"
    given = next(iter(caps.torch_arguments().values()), "default")
    return ",".join(map(str, given)) if isinstance(given, list) else str(given)


def _rows(documents: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[dict[str, object]]:
    from ddpsim.prediction.document import describe_row

    return [{**describe_row(document), "cap": label} for document, label in zip(documents, labels, strict=True)]


def _text(rows: Sequence[Mapping[str, object]], *, moved: bool, columns: Sequence[str]) -> str:
    shown, first = text_of("sweep", rows, columns), rows[0]
    if not (moved or first["pace_kept"]):
        return shown
    whose = f"pace of {first['compute_device']}{', estimated' if first['estimated'] else ''}"
    pace = f", which {first['topology']} has not: its own steps are others" if first["pace_kept"] else ""
    return f"{shown}\n\n{first['workload']}: {whose}{pace}"
