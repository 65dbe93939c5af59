"""Calibration files, `ddpsim.calibration/1`: read, and held against the priors of their backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ddpsim.collectives.calibration import PRIORS, Calibration
from ddpsim.collectives.constant import Constant
from ddpsim.common.documents.records import read_as
from ddpsim.common.errors import CalibrationError
from ddpsim.common.files import display_name, parse_json, read_text

_REMEDY = "make the file again with `ddpsim calibrate`"


def calibration_from(text: str, place: str) -> Calibration:
    """Return the calibration that a file's `text` holds; constants it lacks keep the priors of its backend.

    Raises:
        CalibrationError: not JSON, another schema, a key missing or of the wrong kind, an unknown backend or constant,
            a value that `Constant.allows` does not, another unit, a covariance that is not of the fitted constants.
    """
    document = parse_json(text, place, CalibrationError, _REMEDY, wanted="a calibration")
    read = read_as(Calibration, document, place, CalibrationError, _REMEDY)
    if read.backend not in PRIORS:
        what, remedy = f"unknown backend {read.backend[:60]!r}", f"expected one of {', '.join(PRIORS)}"
        raise CalibrationError(what, place=f"{place}: backend", remedy=remedy)
    constants = dict(Calibration.priors(read.backend).constants)
    for number, entry in enumerate(read.constants.values()):
        _check_constant(entry, constants, f"{place}: constants.{number}")
        constants[entry.name] = entry
    _check_fitted(read, constants, place)
    return replace(read, constants=constants)


def _check_constant(entry: Constant, known: Mapping[str, Constant], place: str) -> None:
    """Hold a constant of a file against the one of its name that is known."""
    prior = known.get(entry.name)
    if prior is None or not prior.allows(entry.value):
        what = f"constant {entry.name!r} = {entry.value!r} is unknown or out of range"
        raise CalibrationError(what, place=place, remedy=_REMEDY)
    if entry.unit != prior.unit:
        what = f"{entry.unit[:60]!r} is not the unit of {entry.name}, which is {prior.unit}"
        raise CalibrationError(what, place=f"{place}.unit", remedy=_REMEDY)


def _check_fitted(read: Calibration, known: Mapping[str, Constant], place: str) -> None:
    for number, name in enumerate(read.fitted_names):
        if name not in known:
            raise CalibrationError(f"{name!r} is no constant", place=f"{place}: fitted_names.{number}", remedy=_REMEDY)
    count = len(read.fitted_names)
    if len(read.covariance) != count or not all(len(row) == count for row in read.covariance):
        what = f"not {count} rows of {count} numbers, a row for each of fitted_names"
        raise CalibrationError(what, place=f"{place}: covariance", remedy=_REMEDY)


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration file; constants it lacks keep their priors.

    Raises:
        CalibrationError: a file that cannot be read or is no calibration.
    """
    text = read_text(path, CalibrationError, "name a file that `ddpsim calibrate -o` wrote")
    return calibration_from(text, display_name(path))
