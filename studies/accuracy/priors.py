"""Fits NCCL's constants to the tables of many sites: `python -m studies.accuracy.priors MEASURED... --topology T`.

As the shipped priors were made. A table more than twice as far off as the median table is set aside and named.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ddpsim.calibrating.measured import read_table
from ddpsim.calibrating.misfit import misfit
from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.calibration import Calibration
from ddpsim.common.errors import CalibrationError, InputError
from ddpsim.common.files import json_text, write_whole
from ddpsim.common.tables import table_of
from ddpsim.common.tables.cells import percent
from ddpsim.common.units import format_count
from ddpsim.prediction.doubts.constants import describe_constant
from ddpsim.topology.spec import load_topology
from studies.accuracy.pooled import Pool, fit_pooled, thin_rows
from studies.command import parser

T = TypeVar("T")


def fit_priors(
    measured: Sequence[str], machines: Sequence[str], nodes: Sequence[int | None], *, accepted: bool = False
) -> tuple[Pool, Calibration]:
    """Return what the tables agree on, and the constants with the residuals of their rows as a band.

    Args:
        measured: nccl-tests text or JSON, microbenchmarks, CSV.
        machines, nodes: of every table, or one for each; None is a table's header, else as few as hold it.
        accepted: whether rows that contradict each other are taken.

    Raises:
        InputError: what belongs to no table, machines of another library, or rows that no constants explain.
    """
    places = _match_tables([load_topology(name) for name in machines], len(measured), "topology")
    samples = []
    for path, machine, count in zip(measured, places, _match_tables(nodes, len(measured), "nodes"), strict=True):
        if machine.backend != "nccl":
            remedy = f"use `ddpsim calibrate` for {machine.backend}"
            what = f"the constants of NCCL alone are pooled, and {machine.name} has {machine.backend}"
            raise CalibrationError(what, place="topology", remedy=remedy)
        samples.append(thin_rows(Sample.of(read_table(path), machine, count)))
    found = fit_pooled(samples, progress=_note)
    kept = [sample for sample in samples if sample.table.name not in found.aside]
    judged = misfit(kept, found.residuals)
    judged.refuse(accepted=accepted)
    if judged.contradictions:
        _note(f"warning: {judged.summary}")
    for name in found.aside:
        _note(f"note: {name} is set aside: more than twice as far off as the median table")
    tables = [sample.table.name for sample in kept]
    low, high = np.percentile(found.residuals, [10, 90])
    fitted = found.calibration().with_values(found.values, source=f"pooled fit to {', '.join(tables)}")
    provenance = {"tables": tables}
    return found, replace(fitted, residual_low=float(low), residual_high=float(high), provenance=provenance)


def _match_tables(given: Sequence[T], tables: int, place: str) -> list[T]:
    """Return one of `given` for each table, where there is one for all or one for each."""
    if len(given) not in (1, tables):
        what = f"{len(given)} given for {format_count(tables, 'table')}"
        raise InputError(what, place=place, remedy="give one for all, or one for each MEASURED, in order")
    return list(given) * tables if len(given) == 1 else list(given)


def _text(found: Pool, calibration: Calibration) -> str:
    rows = [
        {**describe_constant(each), "origin": "fitted" if each.fitted else "documented: no row uses it"}
        for each in calibration.constants.values()
        if each.name in found.values or each.name in found.unused
    ]
    error = float(np.abs(np.expm1(-found.residuals)).mean())
    body = table_of("", rows, ("constant", "constant_value", "constant_unit", "origin")).text()
    return f"{body}\n\n{format_count(len(found.residuals), 'row')}; mean absolute error {percent(error)} on them"


def _note(message: str) -> None:
    print(message, file=sys.stderr)


def main() -> int:
    """Print the constants, or why there are none."""
    words = parser(__doc__)
    words.add_argument("measured", nargs="+", metavar="MEASURED", help="nccl-tests text or JSON, or CSV")
    words.add_argument("--topology", action="append", required=True, help="machine of every table, or of each in order")
    words.add_argument("--nodes", type=lambda text: [int(each) for each in text.split(",")], default=[None])
    words.add_argument("--out", help="calibration to write")
    words.add_argument("--accept-misfit", action="store_true", help="write constants where rows contradict each other")
    given: argparse.Namespace = words.parse_args()
    try:
        found, calibration = fit_priors(given.measured, given.topology, given.nodes, accepted=given.accept_misfit)
        if given.out:
            write_whole(given.out, json_text(calibration.document()))
    except InputError as error:
        _note(f"error: {error}")
        return 2
    print(_text(found, calibration))
    return 0


if __name__ == "__main__":
    sys.exit(main())
