"""`ddpsim collective` and `ddpsim allreduce`: predicted times in nccl-tests' columns, next to measured ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.destination import check_destination, plot_option
from ddpsim.cli.expand import expand
from ddpsim.cli.options import GpusPerNode, NodeCount, TopologyName
from ddpsim.cli.output import Output, note
from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.tables import ResultTable
from ddpsim.common.tables.cells import percent
from ddpsim.common.units import format_count

if TYPE_CHECKING:
    from ddpsim.calibrating.measured import MeasuredTable
    from ddpsim.collectives.calibration import Calibration
    from ddpsim.collectives.execute import Collectives
    from ddpsim.common.operation import Operation
    from ddpsim.topology.graph import Placement, Topology

Row = dict[str, object]
OPERATIONS = "allreduce|reduce_scatter|all_gather|broadcast|reduce|sendrecv|alltoall"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRequest:
    """Arguments of both commands: sizes, ranks, algorithm and a measured table."""

    nodes: NodeCount = None
    gpus_per_node: GpusPerNode = None
    begin: Annotated[
        str | None, typer.Option("-b", metavar="SIZE", help="Smallest size, as nccl-tests takes it. [8]")
    ] = None
    end: Annotated[str | None, typer.Option("-e", metavar="SIZE", help="Largest size. [1G]")] = None
    factor: Annotated[
        int | None, typer.Option("-f", metavar="F", help="Whole factor from one size to the next. [2]")
    ] = None
    backend: Annotated[
        str | None, typer.Option(metavar="nccl|gloo|rccl|mpi", help="[nccl, on AMD's GPUs RCCL; gloo without GPUs]")
    ] = None
    algorithm: Annotated[str, typer.Option(metavar="auto|ring|tree|...", help="Allreduce algorithm.")] = "auto"
    fidelity: Annotated[str, typer.Option(metavar="flow|steps|closed", help="Detail of the network simulation.")] = (
        "flow"
    )
    measured: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="nccl-tests output or CSV; its sizes are predicted, instead of -b, -e, -f."),
    ] = None
    plot: Annotated[str | None, plot_option("Draw time over size.")] = None


@expand
def allreduce(topology: TopologyName, request: CollectiveRequest, constants: ConstantOptions, output: Output) -> None:
    """Predict allreduce times, in nccl-tests' columns.

    Beside a measured table: of its ranks, launched as it was measured.
    """
    from ddpsim.common.operation import Operation

    _predict(Operation.ALLREDUCE, topology, request, constants, output)


@expand
def collective(
    topology: TopologyName,
    op: Annotated[str, typer.Option(metavar=OPERATIONS, help="Which operation.")],
    request: CollectiveRequest,
    constants: ConstantOptions,
    output: Output,
) -> None:
    """Predict an operation's times, in nccl-tests' columns.

    Sizes and busbw are nccl-tests' too: a size is of all parts together, of sendrecv what each rank sends the next, of
    alltoall what each has for all.
    Beside a measured table: of its ranks, launched as it was measured.
    """
    from ddpsim.common.operation import Operation

    _predict(Operation.named(op), topology, request, constants, output)


def _predict(
    operation: Operation, topology: str, request: CollectiveRequest, constants: ConstantOptions, output: Output
) -> None:
    from ddpsim.calibrating.measured import Conditions
    from ddpsim.collectives.conditions import GPU_BACKENDS, CollectiveOptions
    from ddpsim.collectives.execute import Collectives, find_correcting_curve, library_of
    from ddpsim.collectives.nccl.paths_taken import paths_advice
    from ddpsim.topology.spec import load_topology

    check_destination(request.plot)
    machine = load_topology(topology)
    rows = _read_measured(operation, request)
    sizes = _sizes(request) if rows is None else [row.size_bytes for row in rows.rows]
    placement = _place_ranks(machine, request.nodes, request.gpus_per_node, rows)
    backend, algorithm = library_of(placement, request.backend or machine.backend), request.algorithm
    calibration = constants.calibration_in_force(backend)
    # The conditions that the measured table states of itself: what is compared must be of the same.
    stated = Conditions() if rows is None else Conditions.of(rows)
    if algorithm == "auto" and backend in GPU_BACKENDS:
        algorithm = stated.algorithm
    collectives = Collectives(
        None,
        placement,
        backend=backend,
        calibration=calibration or _priors(backend, stated.version),
        options=CollectiveOptions(
            algorithm=algorithm,
            fidelity=request.fidelity,
            isolated=stated.isolated,
            gpus_per_process=stated.gpus_per_process,
        ),
    )
    curve = find_correcting_curve(placement, backend, calibration, algorithm, operation)
    predicted: list[Row] = []
    # Refused before the first row is computed, the largest size first.
    collectives.check_extent(((operation, size) for size in sorted(sizes, reverse=True)), 1)
    for size in sizes:
        timed = collectives.estimate_s if request.fidelity == "closed" else collectives.simulate_s
        choice = collectives.choice(size, operation)
        row = _row(operation, size, timed(size, operation), placement)
        predicted.append(row | {"algorithm": choice.algorithm, "protocol": choice.protocol})
    _add_bands(predicted, placement, collectives, algorithm, operation)
    if rows is not None:
        _join(predicted, rows)
    if request.plot:
        _draw(predicted, request.plot)
    correcting = 0 if curve is None else len(curve.points)
    for line in paths_advice(placement) if backend in GPU_BACKENDS else ():
        note(f"advice: {line}")
    document = {"operation": str(operation), "rows": predicted, "correcting_rows": correcting}
    output.emit(document, lambda: _text(operation, predicted, placement, correcting))


def _read_measured(operation: Operation, request: CollectiveRequest) -> MeasuredTable | None:
    """Return the table of the operation; its sizes are predicted, so that options on them are refused.

    Raises:
        InputError: sizes together with it, or a table of another operation.
    """
    from ddpsim.calibrating.measured import read_tables

    if request.measured is None:
        return None
    sizes = {name: getattr(request, name) for name in ("begin", "end", "factor")}
    refuse_excluded(None, "collective", beside={"measured": request.measured} | sizes)
    tables = {table.operation: table for table in read_tables(request.measured)}
    if operation not in tables:
        what = f"{request.measured} is of {', '.join(tables)}, {operation} is asked for"
        raise InputError(what, place="measured", remedy=f"use `ddpsim collective --op {next(iter(tables))}`")
    return tables[operation]


def _place_ranks(
    machine: Topology, nodes: int | None, gpus_per_node: int | None, rows: MeasuredTable | None
) -> Placement:
    """Return the ranks of the arguments, which are as many as the table was measured with, where there is one.

    Raises:
        InputError: ranks that the machine cannot hold, or others than the table's.
    """
    from ddpsim.calibrating.samples import place_table

    if rows is not None and gpus_per_node is None:
        return place_table(rows, machine, nodes)
    placement = machine.place(nodes, gpus_per_node)
    if rows is not None and rows.ranks not in (None, placement.world_size):
        what = f"{placement.world_size} ranks are asked for, {rows.name} was measured with {rows.ranks}"
        raise InputError(what, place="gpus_per_node", remedy="leave it out, or give --nodes that fit it")
    return placement


def _priors(backend: str, version: int | None) -> Calibration | None:
    """Return the constants without measurements, for the NCCL version that a table states; None for the current one."""
    from ddpsim.collectives.calibration import Calibration

    if backend != "nccl" or version is None:
        return None
    start = Calibration.priors(backend)
    return start.with_values({"nccl.version": version}, source="the table's")


def _sizes(request: CollectiveRequest) -> list[int]:
    from ddpsim.common.units import nccl_sizes, parse_nccl_size

    first = parse_nccl_size("8" if request.begin is None else request.begin, "-b")
    last = parse_nccl_size("1G" if request.end is None else request.end, "-e")
    return nccl_sizes(first, last, 2 if request.factor is None else request.factor)


def _row(operation: Operation, size_bytes: int, seconds: float, placement: Placement) -> Row:
    """Return a row as nccl-tests counts: rates decimal, busbw of an allreduce algbw * 2 (n-1)/n."""
    algorithm_rate = size_bytes / seconds / 1e9
    return {
        "size_bytes": size_bytes,
        "time_us": seconds * 1e6,
        "algbw_GBps": algorithm_rate,
        "busbw_GBps": algorithm_rate * operation.sent(placement.world_size),
    }


def _add_bands(
    predicted: list[Row], placement: Placement, collectives: Collectives, algorithm: str, operation: Operation
) -> None:
    from ddpsim.prediction.doubts.collectives import factors

    sizes = [int(str(row["size_bytes"])) for row in predicted]
    calibration, transport = collectives.calibration, collectives.transport
    ends = factors(placement, calibration.backend, calibration, sizes, algorithm, operation, transport=transport)
    for row, (low, high) in zip(predicted, ends, strict=True):
        time_us = float(str(row["time_us"]))
        row |= {"time_low_us": time_us * low, "time_high_us": time_us * high}


def _join(predicted: list[Row], rows: MeasuredTable) -> None:
    for row, real in zip(predicted, rows.rows, strict=True):
        measured_us = real.undisturbed_s * 1e6  # as a calibration takes it; the table's notes name such rows
        row |= {"measured_us": measured_us, "error": float(str(row["time_us"])) / measured_us - 1}
    for remark in rows.notes:
        note(f"note: {rows.name}: {remark}")


def _draw(predicted: list[Row], path: str) -> None:
    from ddpsim.report.plots import plot_sizes

    curves = {"predicted": [(float(str(row["size_bytes"])), float(str(row["time_us"]))) for row in predicted]}
    if "measured_us" in predicted[0]:
        curves["measured"] = [(float(str(row["size_bytes"])), float(str(row["measured_us"]))) for row in predicted]
    plot_sizes(curves, path)
    note(f"wrote {path}")


def _text(operation: Operation, predicted: list[Row], placement: Placement, correcting: int) -> str:
    """Return nccl-tests' columns and ours; what `#` begins is a remark, as there."""
    names = ["#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "algorithm", "protocol"]
    units = ["#", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "", ""]
    # nccl-tests counts the elements of one rank's part.
    element_bytes = 4 * (placement.world_size if operation.in_parts else 1)
    reduction, root = "sum" if operation.reduces else "none", 0 if operation.rooted else -1
    lines = [
        [
            "",
            row["size_bytes"],
            int(str(row["size_bytes"])) // element_bytes,
            *("float", reduction, root),
            *(f"{row[key]:.2f}" for key in ("time_us", "algbw_GBps", "busbw_GBps")),
            "N/A",
            row["algorithm"],
            row["protocol"],
        ]
        for row in predicted
    ]
    for key, name in (("time_low_us", "low"), ("time_high_us", "high"), ("measured_us", "measured")):
        if key in predicted[0]:
            names.append(name)
            units.append("(us)")
            for line, row in zip(lines, predicted, strict=True):
                line.append(f"{row[key]:.2f}")
    if "error" in predicted[0]:
        names.append("error")
        units.append("")
        for line, row in zip(lines, predicted, strict=True):
            line.append(percent(float(str(row["error"])), signed=True))
    text = ResultTable(tuple(names), (tuple(units), *(tuple(map(str, line)) for line in lines)), frozenset()).text()
    if not correcting:
        return text
    where = f"{format_count(placement.world_size, 'rank')} on {format_count(placement.nodes, 'node')}"
    return f"{text}\n# corrected by {format_count(correcting, 'measured row')} of exactly this machine, {where}"
