"""`ddpsim calibrate`: measured tables become the constants of a machine's links."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.destination import STANDARD_OUTPUT, check_outputs, deliver, plot_option
from ddpsim.cli.expand import expand
from ddpsim.cli.options import TopologyName
from ddpsim.cli.output import Output, note
from ddpsim.cli.progress import Progress
from ddpsim.common.errors import InputError
from ddpsim.common.options.text import counts
from ddpsim.common.tables import table_of
from ddpsim.common.tables.cells import percent
from ddpsim.common.units import format_count

if TYPE_CHECKING:
    from ddpsim.calibrating.calibrate import CalibrationReport
    from ddpsim.collectives.constant import Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateArguments:
    """Arguments of `calibrate`: measured tables, the machine they are of, and where to write."""

    measured: Annotated[
        list[str],
        typer.Argument(metavar="MEASURED...", help="nccl-tests text or -J JSON, microbenchmark, CSV; - is stdin."),
    ]
    topology: TopologyName
    nodes: Annotated[
        str | None, typer.Option(metavar="1,2", help="Nodes of each MEASURED. [its header, else as few as hold it]")
    ] = None
    backend: Annotated[
        str | None, typer.Option(metavar="nccl|gloo", help="[the tables'; gloo on a machine without GPUs]")
    ] = None
    out: Annotated[
        str, typer.Option("--out", "-o", metavar="FILE", help="Calibration to write; - is standard output.")
    ] = "calibration.json"
    accept_misfit: Annotated[
        bool, typer.Option("--accept-misfit", help="Write constants even where rows contradict each other.")
    ] = False
    plot: Annotated[str | None, plot_option("Draw measured against fitted.")] = None


@expand
def calibrate(
    arguments: CalibrateArguments,
    output: Output,
) -> None:
    """Fit a machine's link constants to measured tables of collectives.

    Measured times stand beside fitted ones, then the constants that the tables tell; -v adds all others and all rows.
    """
    from ddpsim.calibrating.calibrate import calibrate as fit
    from ddpsim.calibrating.measured import read_tables
    from ddpsim.common.files import json_text
    from ddpsim.topology.spec import load_topology

    check_outputs(output, out=arguments.out, plot=arguments.plot)
    files = [read_tables(path) for path in arguments.measured]
    tables = [table for held in files for table in held]
    node_counts = None if arguments.nodes is None else counts(arguments.nodes, "nodes", "1,2")
    if node_counts is not None and len(node_counts) not in (1, len(files)):
        what = f"{len(node_counts)} node counts for {len(files)} tables"
        raise InputError(what, place="nodes", remedy="give one for each MEASURED, in order")
    each = node_counts * len(files) if node_counts and len(node_counts) == 1 else node_counts
    counts_by_table = each and [count for count, held in zip(each, files, strict=True) for _ in held]
    report = fit(
        tables,
        load_topology(arguments.topology),
        counts_by_table,
        backend=arguments.backend,
        accept_misfit=arguments.accept_misfit,
        progress=Progress("fits"),
    )
    deliver(arguments.out, json_text(report.calibration.document()))
    if arguments.plot:
        _draw(report, arguments.plot)
    if report.misfit.contradictions:
        note(f"warning: {report.misfit.summary}")
    for remark in report.notes:
        note(f"note: {remark}")
    output.emit(
        _document(report), lambda: _text(report, details=output.verbose), aside=arguments.out == STANDARD_OUTPUT
    )


def _document(report: CalibrationReport) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "fit_error": report.fit_error,
        "held_out_error": report.held_out_error,
        "held_out": report.held_out,
        "constants": [asdict(constant) for constant in report.calibration.constants.values()],
        "misfit": asdict(report.misfit),
        "undetermined": list(report.undetermined),
        "unused": list(report.unused),
        "notes": list(report.notes),
        "rows": [asdict(row) for row in report.rows],
    }


def _draw(report: CalibrationReport, path: str) -> None:
    from ddpsim.report.plots import plot_sizes

    curves: dict[str, list[tuple[float, float]]] = {}
    for row in report.rows:
        for label, seconds in (("measured", row.measured_s), ("fitted", row.fitted_s)):
            curves.setdefault(f"{row.table}, {label}", []).append((row.size_bytes, seconds * 1e6))
    plot_sizes(curves, path)
    note(f"wrote {path}")


def _origin(report: CalibrationReport, constant: Constant) -> str:
    if constant.fitted:
        return "fitted or measured"
    reasons = {"rows say too little": report.undetermined, "no row uses it": report.unused}
    reason = next((reason for reason, names in reasons.items() if constant.name in names), None)
    return f"prior: {reason}" if reason else "prior"


_MOST_ROWS = 24
"""Rows of measured beside fitted times in the text, all with -v and in `--json`; chosen by hand, for one screen."""


def _text(report: CalibrationReport, *, details: bool) -> str:
    """Return how well the constants fit, measured beside fitted times, and the constants: priors only with details."""
    from ddpsim.prediction.doubts.constants import describe_constant

    every = tuple(report.calibration.constants.values())
    shown = [{**describe_constant(each), "origin": _origin(report, each)} for each in every if details or each.fitted]
    lines = [
        _summary(report),
        "",
        *_rows(report, details=details),
        "",
        table_of("calibrate: constants", shown).text(),
    ]
    if left := len(every) - len(shown):
        lines.append(f"{format_count(left, 'constant')} keep their documented default; -v lists them")
    return "\n".join(lines)


def _summary(report: CalibrationReport) -> str:
    line = (
        f"{format_count(len(report.rows), 'row')}; mean absolute error {percent(report.fit_error)} on the rows fitted"
    )
    if report.held_out_error is None:
        return line
    return f"{line}, {percent(report.held_out_error)} on {report.held_out} held out of the fit"


def _rows(report: CalibrationReport, *, details: bool) -> list[str]:
    """Return the table of measured and fitted times, of many rows those farthest off."""
    rows = list(report.rows)
    several = len({row.table for row in rows}) > 1
    note = []
    if not details and len(rows) > _MOST_ROWS:
        farthest = sorted(rows, key=lambda row: -abs(log(row.fitted_s / row.measured_s)))[:_MOST_ROWS]
        note = [f"the {_MOST_ROWS} farthest off of {len(rows)} rows; -v and --json have all"]
        rows = [row for row in rows if row in farthest]
    shown = [
        {
            **({"table": row.table.rpartition("/")[2]} if several else {}),
            "bytes": row.size_bytes,
            "measured_us": row.measured_s * 1e6,
            "fitted_us": row.fitted_s * 1e6,
            "error": row.fitted_s / row.measured_s - 1,
        }
        for row in rows
    ]
    return [table_of("", shown).text(), *note]
