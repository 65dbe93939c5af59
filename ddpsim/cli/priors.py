"""`ddpsim priors`: tables of many sites become constants for machines that nobody has measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver
from ddpsim.cli.expand import expand
from ddpsim.cli.output import Output, note, table
from ddpsim.errors import CalibrationError, InputError
from ddpsim.options.text import counts
from ddpsim.tables.cells import percent
from ddpsim.units import format_count

if TYPE_CHECKING:
    from ddpsim.calibrating.pooled import Pool
    from ddpsim.calibrating.samples import Sample
    from ddpsim.collectives.calibration import Calibration

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorsArguments:
    """What `priors` is asked: measured tables, their machines, and what to write."""

    measured: Annotated[
        list[str],
        typer.Argument(metavar="MEASURED...", help="nccl-tests text or -J JSON, microbenchmark, CSV; - is stdin."),
    ]
    topology: Annotated[
        list[str],
        typer.Option("--topology", metavar="T", help="Machine of every MEASURED, or, repeated, of each in order."),
    ]
    nodes: Annotated[
        str | None, typer.Option(metavar="1,2", help="Nodes of each MEASURED. [its header, else as few as hold it]")
    ] = None
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="Calibration to write; - is standard output.")
    ] = None
    accept_misfit: Annotated[
        bool, typer.Option("--accept-misfit", help="Write constants even where rows contradict each other.")
    ] = False


@expand
def priors(arguments: PriorsArguments, output: Output) -> None:
    """Fit NCCL's constants to the tables of many sites at once.

    As the shipped priors were made. A table more than twice as far off as the median table is set aside and named.
    """
    from ddpsim.calibrating.misfit import misfit
    from ddpsim.calibrating.pooled import fit_pooled
    from ddpsim.files import json_text

    check_destination(arguments.out, as_json=output.as_json)
    samples = _samples(arguments.measured, arguments.topology, arguments.nodes)
    found = fit_pooled(samples, progress=note)
    kept = [sample for sample in samples if sample.table.name not in found.aside]
    judged = misfit(kept, found.residuals)
    judged.refuse(accepted=arguments.accept_misfit)
    if judged.contradictions:
        note(f"warning: {judged.summary}")
    names = ", ".join(sample.table.name for sample in kept)
    calibration = _calibration(found, names)
    for name in found.aside:
        note(f"note: {name} is set aside: more than twice as far off as the median table")
    if arguments.out:
        deliver(arguments.out, json_text(calibration.document()))
    output.emit(
        _document(found, calibration),
        lambda: _text(found, calibration, len(samples)),
        aside=arguments.out == STANDARD_OUTPUT,
    )


def _samples(measured: Sequence[str], machines: Sequence[str], nodes: str | None) -> list[Sample]:
    """Return the thinned tables on their machines."""
    from ddpsim.calibrating.pooled import thin_rows
    from ddpsim.calibrating.samples import Sample
    from ddpsim.measured import read_table
    from ddpsim.topology.spec import load_topology

    tables = [read_table(path) for path in measured]
    places = _match_tables([load_topology(name) for name in machines], len(tables), "topology")
    node_counts = [None] if nodes is None else counts(nodes, "nodes", "1,2")
    samples = []
    for each, machine, count in zip(tables, places, _match_tables(node_counts, len(tables), "nodes"), strict=True):
        if machine.backend != "nccl":
            has = "no GPUs" if machine.backend == "gloo" else "AMD's GPUs"
            what = f"{machine.name} has {has}; the constants of NCCL alone are pooled"
            raise CalibrationError(what, place="topology", remedy=f"use `ddpsim calibrate` for {machine.backend}")
        if each.header.get("backend", "nccl") != "nccl":
            what = f"a table of {each.header['backend']}; the constants of NCCL alone are pooled"
            raise CalibrationError(what, place=each.name, remedy="use `ddpsim calibrate` for gloo")
        samples.append(thin_rows(Sample.of(each, machine, count)))
    if not any(sample.sizes for sample in samples):
        raise CalibrationError("no row to fit to", remedy="give tables of measured allreduces")
    return samples


def _match_tables(given: Sequence[T], tables: int, place: str) -> list[T]:
    """Return one of `given` for each table, where there is one for all or one for each."""
    if len(given) not in (1, tables):
        what = f"{len(given)} given for {format_count(tables, 'table')}"
        raise InputError(what, place=place, remedy="give one for all, or one for each MEASURED, in order")
    return list(given) * tables if len(given) == 1 else list(given)


def _calibration(found: Pool, names: str) -> Calibration:
    """Return the constants with the residuals of the rows they were fitted to, as a band for other machines."""
    from dataclasses import replace

    import numpy as np

    low, high = np.percentile(found.residuals, [10, 90])
    fitted = found.calibration().with_values(found.values, source=f"pooled fit to {names}")
    return replace(fitted, residual_low=float(low), residual_high=float(high), provenance={"tables": names.split(", ")})


def _document(found: Pool, calibration: Calibration) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "constants": [asdict(constant) for constant in calibration.constants.values()],
        "fit_error": _error(found),
        "rows": len(found.residuals),
        "aside": list(found.aside),
        "unused": list(found.unused),
    }


def _text(found: Pool, calibration: Calibration, tables: int) -> str:
    rows = []
    for constant in calibration.constants.values():
        if constant.name in found.values or constant.name in found.unused:
            unit = "" if constant.unit == "1" else constant.unit
            origin = "fitted" if constant.fitted else "documented: no row uses it"
            rows.append((constant.name, f"{constant.value:.3g}", unit, origin))
    kept = tables - len(found.aside)
    summary = f"{format_count(len(found.residuals), 'row')} of {format_count(kept, 'table')}"
    body = table(("constant", "value", "unit", "origin"), rows, left=(0, 2, 3))
    return "\n".join([body, "", f"{summary}; mean absolute error {percent(_error(found))} on them"])


def _error(found: Pool) -> float:
    import numpy as np

    return float(np.abs(np.expm1(-found.residuals)).mean())
