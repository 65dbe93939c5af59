"""`ddpsim allreduce`: predicted allreduce times in nccl-tests' columns, measured ones beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.destination import check_destination
from ddpsim.cli.expand import expand
from ddpsim.cli.options import TopologyName
from ddpsim.cli.output import Output, note, percent, table
from ddpsim.cli.pictures import plot_option
from ddpsim.cli.predict import GpusPerNode
from ddpsim.errors import InputError
from ddpsim.units import counted

if TYPE_CHECKING:
    from ddpsim.collectives.calibration import Calibration
    from ddpsim.measured import MeasuredTable
    from ddpsim.topology.graph import Placement, Topology

Row = dict[str, object]


@expand
def allreduce(
    topology: TopologyName,
    given: ConstantOptions,
    output: Output,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="Nodes. [the machine's own]")] = None,
    gpus_per_node: GpusPerNode = None,
    begin: Annotated[
        str | None, typer.Option("-b", metavar="SIZE", help="Smallest size, as nccl-tests takes it. [8]")
    ] = None,
    end: Annotated[str | None, typer.Option("-e", metavar="SIZE", help="Largest size. [1G]")] = None,
    factor: Annotated[
        int | None, typer.Option("-f", metavar="F", help="Whole factor from one size to the next. [2]")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="nccl|gloo", help="[nccl; gloo on a machine without GPUs]")
    ] = None,
    algorithm: Annotated[str, typer.Option(metavar="auto|ring|tree|...", help="Allreduce algorithm.")] = "auto",
    fidelity: Annotated[
        str, typer.Option(metavar="flow|steps|closed", help="Detail of the network simulation.")
    ] = "flow",
    measured: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="nccl-tests output or CSV; its sizes are predicted, instead of -b, -e, -f."),
    ] = None,
    plot: Annotated[str | None, plot_option("Draw time over size.")] = None,
) -> None:
    """Predict allreduce times, in nccl-tests' columns.

    Beside a measured table: of its ranks, launched as it was measured.
    """
    from ddpsim.collectives.execute import Collectives, correcting_curve
    from ddpsim.jobs.collective import CollectiveOptions
    from ddpsim.measured import Conditions
    from ddpsim.topology.spec import load_topology
    from ddpsim.topology.transports import nic_advice

    check_destination(plot)
    machine = load_topology(topology)
    rows = _measured(measured, {"-b": begin, "-e": end, "-f": factor})
    sizes = _sizes(begin, end, factor) if rows is None else [row.size_bytes for row in rows.rows]
    placement = _placed(machine, nodes, gpus_per_node, rows)
    backend = backend or machine.backend
    constants = given.calibration_in_force(backend)
    stated = Conditions() if rows is None else Conditions.of(rows)
    if algorithm == "auto" and backend == "nccl":
        algorithm = stated.algorithm
    collectives = Collectives(
        None,
        placement,
        backend=backend,
        calibration=constants or _priors(backend, stated.version),
        options=CollectiveOptions(
            algorithm=algorithm, fidelity=fidelity, isolated=stated.isolated, gpus_per_process=stated.gpus_per_process
        ),
    )
    curve = correcting_curve(placement, backend, constants, algorithm)
    found: list[Row] = []
    for size in sizes:
        seconds = collectives.estimate_s(size) if fidelity == "closed" else collectives.simulate_s(size)
        choice = collectives.choice(size)
        found.append(_row(size, seconds, placement) | {"algorithm": choice.algorithm, "protocol": choice.protocol})
    _add_bands(found, placement, collectives.calibration, algorithm)
    if rows is not None:
        _join(found, rows)
    if plot:
        _draw(found, plot)
    correcting = 0 if curve is None else len(curve.points)
    for line in nic_advice(machine) if backend == "nccl" and placement.nodes > 1 else ():
        note(f"advice: {line}")
    output.emit({"rows": found, "correcting_rows": correcting}, lambda: _text(found, placement, correcting))


def _measured(path: str | None, sizes: dict[str, object]) -> MeasuredTable | None:
    """Return the table in `path`; its sizes are predicted, so that options on them are refused."""
    from ddpsim.measured import read_table

    if path is None:
        return None
    for flag in (flag for flag, value in sizes.items() if value is not None):
        raise InputError(f"{flag} and --measured are both given", place="measured", remedy="keep one")
    return read_table(path)


def _placed(machine: Topology, nodes: int | None, gpus_per_node: int | None, rows: MeasuredTable | None) -> Placement:
    """Return the ranks that are asked for: as many as the table was measured with, where there is one.

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


def _sizes(begin: str | None, end: str | None, factor: int | None) -> list[int]:
    from ddpsim.units import nccl_sizes, parse_nccl_size

    first = parse_nccl_size("8" if begin is None else begin, "-b")
    last = parse_nccl_size("1G" if end is None else end, "-e")
    return nccl_sizes(first, last, 2 if factor is None else factor)


def _row(size_bytes: int, seconds: float, placement: Placement) -> Row:
    """Return a row as nccl-tests counts: rates decimal, busbw = algbw * 2 (n-1)/n."""
    ranks = placement.world_size
    algorithm_rate = size_bytes / seconds / 1e9
    return {
        "size_bytes": size_bytes,
        "time_us": seconds * 1e6,
        "algbw_GBps": algorithm_rate,
        "busbw_GBps": algorithm_rate * 2 * (ranks - 1) / ranks,
    }


def _add_bands(found: list[Row], placement: Placement, calibration: Calibration, algorithm: str) -> None:
    from ddpsim.doubts.collectives import factors

    sizes = [int(str(row["size_bytes"])) for row in found]
    ends = factors(placement, calibration.backend, calibration, sizes, algorithm)
    for row, (low, high) in zip(found, ends, strict=True):
        time_us = float(str(row["time_us"]))
        row |= {"time_low_us": time_us * low, "time_high_us": time_us * high}


def _join(found: list[Row], rows: MeasuredTable) -> None:
    for row, real in zip(found, rows.rows, strict=True):
        measured_us = real.time_s * 1e6
        row |= {"measured_us": measured_us, "error": float(str(row["time_us"])) / measured_us - 1}
    for remark in rows.notes:
        note(f"note: {rows.name}: {remark}")


def _draw(found: list[Row], path: str) -> None:
    from ddpsim.plots import plot_sizes

    curves = {"predicted": [(float(str(row["size_bytes"])), float(str(row["time_us"]))) for row in found]}
    if "measured_us" in found[0]:
        curves["measured"] = [(float(str(row["size_bytes"])), float(str(row["measured_us"]))) for row in found]
    plot_sizes(curves, path)
    note(f"wrote {path}")


def _text(found: list[Row], placement: Placement, correcting: int) -> str:
    """Return nccl-tests' columns and ours; what `#` begins is a remark, as there."""
    names = ["#", "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "algorithm", "protocol"]
    units = ["#", "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "", ""]
    lines = [
        [
            "",
            row["size_bytes"],
            int(str(row["size_bytes"])) // 4,
            *("float", "sum", -1),
            *(f"{row[key]:.2f}" for key in ("time_us", "algbw_GBps", "busbw_GBps")),
            "N/A",
            row["algorithm"],
            row["protocol"],
        ]
        for row in found
    ]
    for key, name in (("time_low_us", "low"), ("time_high_us", "high"), ("measured_us", "measured")):
        if key in found[0]:
            names.append(name)
            units.append("(us)")
            for line, row in zip(lines, found, strict=True):
                line.append(f"{row[key]:.2f}")
    if "error" in found[0]:
        names.append("error")
        units.append("")
        for line, row in zip(lines, found, strict=True):
            line.append(percent(float(str(row["error"])), signed=True))
    text = table(names, [units, *lines], left=())
    if not correcting:
        return text
    where = f"{counted(placement.world_size, 'rank')} on {counted(placement.nodes, 'node')}"
    return f"{text}\n# corrected by {counted(correcting, 'measured row')} of exactly this machine, {where}"
