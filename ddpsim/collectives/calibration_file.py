"""Calibration files, `ddpsim.calibration/1`, as pydantic models, and the calibration in one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from ddpsim.collectives.calibration import PRIORS, SCHEMA, Calibration, Curve, CurvePoint
from ddpsim.collectives.constant import Constant
from ddpsim.documents import Document, File, read_as
from ddpsim.errors import CalibrationError
from ddpsim.files import display_name, parse_json, read_text
from ddpsim.operations import Operation

_REMEDY = "make the file again with `ddpsim calibrate`"
_LARGEST_SPREAD, _LARGEST_RESIDUAL = 100.0, 10.0
"""Of the standard deviation of a logarithm, and of the logarithm of an error: more than any measurement leaves."""

Size = Annotated[int, Field(gt=0, lt=1 << 63)]
Seconds = Annotated[float, Field(gt=0, lt=1e9)]
Count = Annotated[int, Field(gt=0, lt=1 << 31)]
Residual = Annotated[float, Field(ge=-_LARGEST_RESIDUAL, le=_LARGEST_RESIDUAL)]
Covariance = Annotated[float, Field(ge=-(_LARGEST_RESIDUAL**2), le=_LARGEST_RESIDUAL**2)]


class ConstantEntry(Document):
    """A constant; its name, unit and range are those of a prior."""

    name: str
    value: float
    unit: str
    source: str
    fitted: bool = False
    log_std: Annotated[float, Field(ge=0, le=_LARGEST_SPREAD)] | None = None


class CurveEntry(Document):
    """Measured rows of one machine and rank count: `points` are `[size_bytes, seconds]`."""

    topology: str
    nodes: Count
    gpus_per_node: Count
    points: list[Annotated[tuple[Size, Seconds], Field(strict=False)]]
    algorithm: str = "auto"
    gpus_per_process: Count = 1
    operation: Annotated[Operation, Field(strict=False)] = Operation.ALLREDUCE


class CalibrationFile(File):
    """A calibration file holds constants, their covariance, and the curves that correct them."""

    SCHEMA = SCHEMA
    KIND = "calibration file"

    backend: str
    constants: list[ConstantEntry]
    fitted_names: list[str]
    covariance: list[list[Covariance]]
    residual_low: Residual | None
    residual_high: Residual | None
    curves: list[CurveEntry]
    provenance: dict[str, Any]


def calibration_from(text: str, place: str) -> Calibration:
    """Return the calibration that a file's `text` holds; constants it lacks keep the priors of its backend.

    Raises:
        CalibrationError: not JSON, another schema, a key missing or of the wrong kind, an unknown backend or constant,
            a value that `Constant.allows` does not, another unit, a covariance that is not of the fitted constants.
    """
    document = parse_json(text, place, CalibrationError, _REMEDY, wanted="a calibration")
    read = read_as(CalibrationFile, document, place, CalibrationError, _REMEDY)
    if read.backend not in PRIORS:
        what, remedy = f"unknown backend {read.backend[:60]!r}", f"expected one of {', '.join(PRIORS)}"
        raise CalibrationError(what, place=f"{place}: backend", remedy=remedy)
    constants = dict(Calibration.priors(read.backend).constants)
    for number, entry in enumerate(read.constants):
        constants[entry.name] = _constant(entry, constants, f"{place}: constants.{number}")
    _check_fitted(read, constants, place)
    return Calibration(
        constants=constants,
        fitted_names=tuple(read.fitted_names),
        covariance=tuple(map(tuple, read.covariance)),
        curves=tuple(map(_curve, read.curves)),
        **{name: getattr(read, name) for name in ("backend", "residual_low", "residual_high", "provenance")},
    )


def _constant(entry: ConstantEntry, known: Mapping[str, Constant], place: str) -> Constant:
    """Return the constant that `entry` describes, of the name and unit of one that is known."""
    prior = known.get(entry.name)
    if prior is None or not prior.allows(entry.value):
        what = f"constant {entry.name!r} = {entry.value!r} is unknown or out of range"
        raise CalibrationError(what, place=place, remedy=_REMEDY)
    if entry.unit != prior.unit:
        what = f"{entry.unit[:60]!r} is not the unit of {entry.name}, which is {prior.unit}"
        raise CalibrationError(what, place=f"{place}.unit", remedy=_REMEDY)
    return Constant(entry.name, entry.value, entry.unit, entry.source, entry.fitted, entry.log_std)


def _check_fitted(read: CalibrationFile, known: Mapping[str, Constant], place: str) -> None:
    for number, name in enumerate(read.fitted_names):
        if name not in known:
            raise CalibrationError(f"{name!r} is no constant", place=f"{place}: fitted_names.{number}", remedy=_REMEDY)
    count = len(read.fitted_names)
    if len(read.covariance) != count or not all(len(row) == count for row in read.covariance):
        what = f"not {count} rows of {count} numbers, a row for each of fitted_names"
        raise CalibrationError(what, place=f"{place}: covariance", remedy=_REMEDY)


def _curve(entry: CurveEntry) -> Curve:
    return Curve(**{**dict(entry), "points": tuple(CurvePoint(*point) for point in entry.points)})


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration file; constants it lacks keep their priors.

    Raises:
        CalibrationError: a file that cannot be read or is no calibration.
    """
    text = read_text(path, CalibrationError, "name a file that `ddpsim calibrate -o` wrote")
    return calibration_from(text, display_name(path))
