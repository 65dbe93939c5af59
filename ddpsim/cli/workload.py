"""`ddpsim workload`: shipped workloads, one in full, one from a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver
from ddpsim.cli.expand import expand
from ddpsim.cli.options import (
    CalibrationFile,
    GpusPerNode,
    NodeCount,
    PlanFile,
    TopologyName,
    read_calibration,
    read_plan,
    refuse_beside_plan,
)
from ddpsim.cli.output import Output, note
from ddpsim.cli.sections import SectionedCommand
from ddpsim.common.options.option import Section
from ddpsim.common.tables import Record, table_of
from ddpsim.simulation.jobs.simulated import Options

if TYPE_CHECKING:
    from ddpsim.workload import Workload

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, show and import workloads: one rank's recorded iterations."
)


@app.command("list")
@expand
def list_(output: Output) -> None:
    """List the shipped workloads."""
    from ddpsim.common import shipped
    from ddpsim.workload.files import load_workload

    rows = [_summary(name, load_workload(name)) for name in shipped.names("workload")]
    output.emit({"workloads": rows}, lambda: table_of("workloads", rows).text())


@app.command()
@expand
def show(
    workload: Annotated[str, typer.Argument(metavar="W", help="Shipped workload, or a workload file.")], output: Output
) -> None:
    """Show one workload: its phases on both clocks, its gradients, where it comes from."""
    from ddpsim.workload.files import load_workload

    model = load_workload(workload)
    document = _summary(model.name, model) | {
        "threads": model.threads,
        **({"frozen": len(model.frozen), "frozen_bytes": frozen} if (frozen := model.frozen_bytes) else {}),
        "buffers": len(model.buffers),
        "buffer_bytes": model.buffer_bytes,
        "iterations": model.iterations,
        "synchronises": list(model.synchronises),
        "forward_use_known": model.forward_use_known,
        **({"devices": [part.device for part in model.devices]} if model.devices else {}),
        "phases": _phases(model),
        "provenance": dict(model.provenance),
    }
    output.emit(document, lambda: _text(document))


@app.command("import")
@expand
def import_(
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Kineto trace of one rank, .json or .json.gz, or Chakra execution trace, .et."
        ),
    ],
    output: Output,
    shapes: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="W", help="Workload of the same model, for traces recorded without shapes."),
    ] = None,
    file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("-o", "--output", help="Workload file to write, .json or .json.gz; standard output without."),
    ] = None,
) -> None:
    """Make a workload of a trace, cutting out DDP where it was traced; notes go to standard error."""
    from ddpsim.common.errors import InputError
    from ddpsim.workload.files import load_workload
    from ddpsim.workload.kineto.iterations import buckets_in
    from ddpsim.workload.kineto.workload import open_trace, workload_in

    check_destination(file, as_json=output.as_json)
    if trace.suffix == ".et":  # Chakra's; any other is a trace of torch.profiler
        if shapes is not None:
            remedy = "leave it out: such a trace has sizes of its own"
            raise InputError("is given with a Chakra execution trace", place="shapes", remedy=remedy)
        _import_chakra(trace, file, output)
        return
    known = None if shapes is None else load_workload(shapes)
    traced = open_trace(trace, known)
    imported = workload_in(traced, known)
    for line in imported.notes:
        note(line)
    if file is None:
        _write(imported.workload, output)
        return
    seen = buckets_in(traced)
    _save(
        imported.workload,
        file,
        output,
        {"notes": list(imported.notes), "traced_buckets": seen},
        _format("workload: buckets", seen),
    )


def _import_chakra(trace: Path, file: Path | None, output: Output) -> None:
    """Make a workload of a Chakra execution trace."""
    from ddpsim.chakra.importing import import_trace

    imported = import_trace(trace)
    for line in imported.notes:
        note(line)
    if file is None:
        _write(imported.workload, output)
        return
    seen = imported.rows()
    details = {"notes": list(imported.notes), "traced_collectives": seen}
    _save(imported.workload, file, output, details, _format("workload: collectives", seen))


def _write(model: Workload, output: Output) -> None:
    from ddpsim.common.files import json_text
    from ddpsim.workload.files import workload_document

    document = workload_document(model)
    output.emit(document, lambda: json_text(document).rstrip())


def _save(model: Workload, file: Path, output: Output, details: dict[str, object], text: str) -> None:
    """Write a workload to `file`, and print its summary with `details`."""
    from ddpsim.common.files import json_text
    from ddpsim.workload.files import workload_document

    deliver(file, json_text(workload_document(model)))
    summary = _summary(model.name, model) | details
    output.emit(summary, lambda: f"{text}{model.name} written to {file}", aside=str(file) == STANDARD_OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorArguments:
    """Arguments of `workload anchor`: a workload, a measured step of it, and where it was measured."""

    workload: Annotated[str, typer.Argument(metavar="W", help="Shipped workload, or a workload file.")]
    topology: TopologyName
    step: Annotated[str, typer.Option(metavar="1.3s", help="What the step took there."), Section.JOB]
    file: Annotated[
        Path, typer.Option("-o", "--output", help="Workload file to write, .json or .json.gz."), Section.OUTPUT
    ]
    nodes: NodeCount = None
    gpus_per_node: GpusPerNode = None
    plan: PlanFile = None
    calibration: CalibrationFile = None


@app.command(cls=SectionedCommand)
@expand
def anchor(arguments: AnchorArguments, options: Options, output: Output) -> None:
    """Give a workload the pace at which its distributed step takes what somebody measured."""
    from math import exp

    from ddpsim.common.errors import InputError
    from ddpsim.common.files import json_text
    from ddpsim.common.units import parse_time
    from ddpsim.prediction.pace_from_row import MeasuredStep, anchor_to_row
    from ddpsim.topology.spec import load_topology
    from ddpsim.workload.anchors import MOSTLY_COMMUNICATION, ROOFLINE_BAND
    from ddpsim.workload.files import load_workload, workload_document

    refuse_beside_plan(arguments.plan, options)
    check_destination(arguments.file, as_json=output.as_json)
    model, step_s = load_workload(arguments.workload), parse_time(arguments.step, "step")
    if step_s <= 0:
        raise InputError(
            f"{arguments.step!r} is not a time that a step takes", place="step", remedy="give a time above zero"
        )
    row = MeasuredStep(step_s, load_topology(arguments.topology), arguments.nodes, arguments.gpus_per_node)
    chosen = replace(options, plan=read_plan(arguments.plan, model.parameters))
    paced = anchor_to_row(model, row, chosen, read_calibration(arguments.calibration))
    deliver(arguments.file, json_text(workload_document(paced)))
    factor, (low, high) = paced.provenance["row_scale"], map(exp, ROOFLINE_BAND)
    # The estimate has a band of its own: a pace beyond it says that the step was of something else.
    if isinstance(factor, float) and not low <= factor <= high:
        question = f"beyond the estimate's band of {low:.2f} to {high:.2f}; was it that GPU, batch size and precision"
        note(f"warning: the pace is {factor:.3g} times the workload's own, {question}, and that number of GPUs?")
    # Where communication fills the step, an error of its prediction moves the remainder, the pace, many times over.
    floor = paced.provenance["row_floor_share"]
    if isinstance(floor, float) and floor > MOSTLY_COMMUNICATION:
        left = f"warning: {100 * floor:.0f} % of that step would be left with hardly any computation"
        note(f"{left}: its pace is no surer than the collectives; calibrate them, or give a one-GPU step")
    summary = _summary(paced.name, paced) | {"row_scale": factor}
    output.emit(
        summary,
        lambda: f"{paced.name}: computation times {factor}; written to {arguments.file}",
        aside=str(arguments.file) == STANDARD_OUTPUT,
    )


@app.command()
@expand
def split(
    workload: Annotated[str, typer.Argument(metavar="W", help="Shipped workload, or a workload file, of one device.")],
    output: Output,
    file: Annotated[Path, typer.Option("-o", "--output", help="Workload file to write, .json or .json.gz.")],
    devices: Annotated[int, typer.Option(metavar="D", help="Devices of a rank.")] = 2,
    at: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="NAME,...",
            help="Layers with which the second device's part begins and those after it, in forward's order. "
            "[so that the longest part is the shortest]",
        ),
    ] = None,
    sent_bytes: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="25MiB",
            help="Activations of a batch that pass from one device to the next. [what the operators say]",
        ),
    ] = None,
) -> None:
    """Put consecutive layers of a workload on several devices of a rank, which then compute in turn."""
    from ddpsim.common.units import parse_size
    from ddpsim.simulation.jobs.device_split import cut_layers, put_on_devices
    from ddpsim.workload.files import load_workload, with_operators

    check_destination(file, as_json=output.as_json)
    given, names = (
        None if sent_bytes is None else round(parse_size(sent_bytes, "sent_bytes")),
        at.split(",") if at else (),
    )
    model = with_operators(load_workload(workload))
    split = put_on_devices(model, cut_layers(model, devices, names), given)
    parts = [
        {
            "device": part.device,
            "parameters": sum(each.device == part.device for each in split.parameters),
            "gradient_bytes": sum(each.size_bytes for each in split.parameters if each.device == part.device),
            "first": next(each.name for each in split.parameters if each.device == part.device),
            "sent_bytes": part.sent_bytes,
        }
        for part in split.devices
    ]
    _save(split, file, output, {"devices": parts}, _format("workload: parts", parts))


def _format(command: str, rows: Sequence[Record]) -> str:
    return f"{table_of(command, rows).text()}\n\n" if rows else ""


def _summary(name: str, model: Workload) -> dict[str, object]:
    from ddpsim.prediction.predict import local_period_s
    from ddpsim.simulation.jobs.simulated import Options

    return {
        "name": name,
        "device": model.device_label,
        "precision": model.precision,
        "batch_size": model.batch_size,
        "estimated": model.estimated,
        "parameters": len(model.parameters),
        "gradient_bytes": model.gradient_bytes,
        "local_s": local_period_s(model, Options()),
    }


def _phases(model: Workload) -> dict[str, dict[str, float]]:
    from statistics import median

    return {
        name: {
            clock: median(float(second) for second in getattr(getattr(model, name), clock))
            for clock in ("host_s", "device_s")
        }
        for name in ("forward", "backward", "optimizer")
    }


_FORWARD_USE = {True: "known", False: "not known, all parameters count as needed when forward starts"}


def _text(document: dict[str, object]) -> str:
    phases = document["phases"]
    assert isinstance(phases, dict)
    shown = {**document, "forward_use_known": _FORWARD_USE[bool(document["forward_use_known"])]}
    lines = [
        f"{key.removesuffix('_known')}: {value}"
        for key, value in shown.items()
        if key not in ("phases", "provenance", "local_s")
    ]
    clocks = table_of("", [{"phase": name, **clocks} for name, clocks in phases.items()]).text()
    provenance = document["provenance"]
    assert isinstance(provenance, dict)
    return "\n".join([*lines, "", clocks, "", *(f"{key}: {value}" for key, value in provenance.items())])
