"""Errors of uncalibrated allreduce predictions on tables whose sites took no part in the constants."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddpsim.calibrating.samples import Sample
from ddpsim.collectives.calibration import Calibration
from ddpsim.prediction.doubts.collectives import family, latency_share
from studies.accuracy.documented import make_documented_calibration
from studies.accuracy.pooled import fit_pooled, thin_rows
from studies.accuracy.systems import CITED, LATER, SYSTEMS, System, load

FOLDS = Path(__file__).with_name("folds.json")
"""Constants fitted without an eighth of the sites each: a site's own tables have no part in those it is judged by."""

_FOLDS = 8


@dataclass(frozen=True)
class Row:
    """One measured time beside its prediction.

    Attributes:
        family: of transports.
        latency_share: of the predicted time.
        error: log(measured / predicted).
    """

    table: str
    site: str
    family: str
    size_bytes: int
    latency_share: float
    error: float


def systems() -> list[System]:
    """Return the systems whose tables are kept here, one for each table."""
    return [system for system in (*LATER, *CITED, *SYSTEMS) if system.site != "vtrain"]


def constants() -> dict[str, Calibration]:
    """Return by site the constants that were fitted without it."""
    start = make_documented_calibration()
    folds = json.loads(FOLDS.read_text())
    return {site: start.with_values(fold["constants"], source="fold") for fold in folds for site in fold["left_out"]}


def rows(chosen: Sequence[System] | None = None) -> list[Row]:
    """Return the rows of 1 KiB and more of every table, or of those `chosen`."""
    fitted = constants()
    found = []
    for system in systems() if chosen is None else chosen:
        found += _rows(system, load(system), fitted[system.site])
    return found


def _rows(system: System, sample: Sample, calibration: Calibration) -> list[Row]:
    transport = sample.transport(calibration)
    errors = np.log(sample.measured / sample.predict(calibration)).tolist()
    name = family(sample.placement, "nccl")
    return [
        Row(system.name, system.site, name, size, latency_share(transport, size), error)
        for size, error in zip(sample.sizes, errors, strict=True)
    ]


def fit_folds(samples: Mapping[System, Sample], progress: Callable[[str], None]) -> list[dict[str, object]]:
    """Return the constants fitted without every eighth site, in eight folds.

    Searches start from the fit to all tables, which saves rounds; what they end at is of the tables kept alone.
    """
    near = fit_pooled([thin_rows(sample) for sample in samples.values()]).values
    sites = list(dict.fromkeys(system.site for system in samples))
    folds: list[dict[str, object]] = []
    for fold in range(_FOLDS):
        left_out = sorted(sites[fold::_FOLDS])
        progress(f"fitting without {', '.join(left_out)}")
        kept = [thin_rows(sample) for system, sample in samples.items() if system.site not in left_out]
        values = fit_pooled(kept, near).values
        folds.append({"left_out": left_out, "constants": {name: float(f"{v:.4g}") for name, v in values.items()}})
    return folds
