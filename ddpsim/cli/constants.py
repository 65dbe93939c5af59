"""`ddpsim constants`: every constant of a prediction, and `--set NAME=VALUE`, which replaces one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.expand import expand
from ddpsim.cli.options import read_calibration
from ddpsim.cli.output import Output
from ddpsim.common.errors import InputError
from ddpsim.common.options.option import Section

if TYPE_CHECKING:
    from ddpsim.collectives.calibration import Calibration
    from ddpsim.collectives.constant import Constant

_FLAG = "--set"


@dataclass(frozen=True, slots=True)
class ConstantOptions:
    """Which constants are in force."""

    calibration: Annotated[
        str | None, typer.Option(metavar="C", help="Calibration file of `ddpsim calibrate`."), Section.MACHINE
    ] = None
    set: Annotated[
        list[str] | None,
        typer.Option(_FLAG, metavar="NAME=VALUE", help="A constant of `ddpsim constants`; may be repeated."),
        Section.MACHINE,
    ] = None

    def calibration_in_force(self, backend: str | None = None) -> Calibration | None:
        """Return the calibration that --calibration names, with what --set says; None without either.

        Args:
            backend: of the process group; the constants that --set names have to be of it.

        Raises:
            InputError: a name that no constant has, a value that it cannot take, names of two backends.
        """
        return with_given(read_calibration(self.calibration), self.set or [], backend)


def with_given(calibration: Calibration | None, items: Sequence[str], backend: str | None = None) -> Calibration | None:
    """Return `calibration`, or the priors, with the constants that `items` set; None where there is neither."""
    from ddpsim.collectives.calibration import PRIORS, Calibration
    from ddpsim.collectives.constant import GIVEN

    if not items:
        return calibration
    known = {constant.name: constant for constants in PRIORS.values() for constant in constants}
    values: dict[str, float] = {}
    for item in items:
        name, value = _pair(item, known)
        if name in values:
            raise InputError("is given twice and takes one value", place=f"{_FLAG} {name}", remedy="keep one")
        values[name] = value
    wanted = calibration.backend if calibration else backend
    for name in values:
        own = name.partition(".")[0]
        wanted = wanted or own
        if own != wanted:
            what = f"is of {own}, the process group is {wanted}"
            raise InputError(what, place=f"{_FLAG} {name}", remedy=f"name a constant of {wanted}")
    start = calibration or Calibration.priors(str(wanted))
    return start.with_values(values, source=GIVEN)


def _pair(item: str, known: dict[str, Constant]) -> tuple[str, float]:
    """Return name and value of `NAME=VALUE`."""
    from ddpsim.common.errors import UnknownNameError

    name, equals, text = item.partition("=")
    if not equals:
        remedy = f"write NAME=VALUE, e.g. {_FLAG} nccl.ddp.compute_slowdown=1.2"
        raise InputError(f"{item!r} names no constant and value", place=_FLAG, remedy=remedy)
    if name not in known:
        raise UnknownNameError.among("constant", name, sorted(known), place=_FLAG)
    value = _value(known[name], text)
    if 0 < value < known[name].least:
        remedy = f"give what a busy device takes over what an idle one takes, e.g. {name}=1.2"
        raise InputError(f"{text!r} is below 1, which is no slow-down", place=f"{_FLAG} {name}", remedy=remedy)
    most = known[name].most
    if most is not None and value > most:
        remedy = f"give at most {most:g}, or leave it out for {known[name].value:g}"
        raise InputError(f"{text!r} is more than all of what it is a share of", place=f"{_FLAG} {name}", remedy=remedy)
    if not known[name].allows(value):
        remedy = f"give what its unit allows, e.g. {name}={_example(known[name])}"
        raise InputError(f"{text!r} is out of range or no number", place=f"{_FLAG} {name}", remedy=remedy)
    return name, value


def _value(constant: Constant, text: str) -> float:
    """Return the value in the constant's own unit; a quantity carries its own, a ratio is bare. NaN: no number."""
    from ddpsim.common.units import parse_bandwidth, parse_time

    place = f"{_FLAG} {constant.name}"
    if constant.unit == "s":
        return parse_time(text, place)
    if constant.unit == "B/s":
        return parse_bandwidth(text, place)
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _example(constant: Constant) -> str:
    factor, unit = {"s": (1e6, "us"), "B/s": (1e-9, "GB/s")}.get(constant.unit, (1.0, ""))
    return f"{constant.value * factor:g}{unit}"


@expand
def constants(
    options: ConstantOptions,
    output: Output,
    backend: Annotated[str | None, typer.Option(metavar="nccl|gloo|rccl|mpi", help="Of one backend. [all]")] = None,
) -> None:
    """List the constants that predictions rest on: value, unit, source, doubt, and whether each is a prior."""
    from ddpsim.collectives.execute import BACKENDS
    from ddpsim.common.errors import UnknownNameError
    from ddpsim.prediction.doubts.constants import describe_constant, table_constants

    if backend not in (None, *BACKENDS):
        raise UnknownNameError.among("backend", str(backend), BACKENDS, place="--backend")
    calibration = options.calibration_in_force(backend)
    if calibration and backend not in (None, calibration.backend):
        what = f"the calibration is of {calibration.backend}"
        raise InputError(what, place=f"--backend {backend}", remedy="leave it out")
    in_force = _constants_in_force(calibration, backend)
    output.emit({"rows": [describe_constant(each) for each in in_force]}, table_constants(in_force).text)


def _constants_in_force(calibration: Calibration | None, backend: str | None) -> list[Constant]:
    """Return the constants in force of one backend, or of all."""
    from ddpsim.collectives.calibration import PRIORS

    if calibration is None:
        return [constant for name in PRIORS if backend in (None, name) for constant in PRIORS[name]]
    return [calibration.constants.get(prior.name, prior) for prior in PRIORS[calibration.backend]]
