"""A calibration: the constants of a transport with their origin, and what measurements said of their error.

Constants have physical meaning (an efficiency, a latency, a cost), a unit, and a source. Without measurements they are
documented priors; fitting (`ddpsim.calibrating.calibrate`) replaces some. The type knows nothing of fitting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ddpsim.errors import CalibrationError
from ddpsim.files import parse_json

SCHEMA = "ddpsim.calibration/1"
_REMEDY = "make the file again with `ddpsim calibrate`"
_RANGES = {"s": (1e-12, 1e6), "B/s": (1.0, 1e18), "B": (1.0, 1e18), "1": (1e-6, 1e6), "spread": (1e-12, 10.0)}
"""Least and most of constants by unit, far beyond what any machine has; a spread is one of logarithms."""


GIVEN = "given"
"""Source of a constant that somebody set outright: it is neither measured nor in doubt."""


@dataclass(frozen=True, slots=True)
class Constant:
    """One physical constant.

    Attributes:
        name: dotted: `gloo.step_s`, `nccl.simple.efficiency.nvlink`.
        value: in `unit`.
        unit: `s`, `B/s`, `B`, or `1` for a ratio.
        source: where the value comes from: a page, a source file, or `fitted to FILE`.
        fitted: whether measurements determined it; a prior otherwise.
        log_std: standard deviation of its natural logarithm; None where unknown.
    """

    name: str
    value: float
    unit: str
    source: str
    fitted: bool = False
    log_std: float | None = None

    @property
    def measured(self) -> bool:
        """Whether measurements determined it."""
        return self.fitted and self.source != GIVEN

    def allows(self, value: object) -> bool:
        """Whether `value` may take the place of this constant's own.

        What its unit makes sense of. A cost of DDP in seconds, or a spread, may be 0 too: a rate or a factor never.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        spread = self.name.endswith("_spread")
        if value == 0:
            return spread or (".ddp." in self.name and self.unit == "s")
        least, most = _RANGES["spread" if spread else self.unit]
        return least <= value <= most


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A measured allreduce: `time_s` at `size_bytes`."""

    size_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured rows for exactly one machine and rank count; they correct the model there and nowhere else.

    Attributes:
        algorithm: the one that was forced, which they correct alone, or `auto`.
        gpus_per_process: more than one where one process launched on several GPUs.
    """

    topology: str
    nodes: int
    gpus_per_node: int
    points: tuple[CurvePoint, ...]
    algorithm: str = "auto"
    gpus_per_process: int = 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants by name, with the spread that measurements left.

    Attributes:
        backend: `nccl` or `gloo`.
        constants: every constant the transport uses.
        fitted_names: order of rows and columns of `covariance`.
        covariance: of the natural logarithms of the fitted constants.
        residual_low, residual_high: 10th and 90th percentile of log(measured / predicted) of held-out rows; None
            where there were no measurements.
        curves: measured rows by machine and rank count.
        provenance: files, rows used, versions.
    """

    backend: str
    constants: Mapping[str, Constant]
    fitted_names: tuple[str, ...] = ()
    covariance: tuple[tuple[float, ...], ...] = ()
    residual_low: float | None = None
    residual_high: float | None = None
    curves: tuple[Curve, ...] = ()
    provenance: Mapping[str, object] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        """Return the value of constant `name` in its own unit."""
        return self.constants[name].value

    @property
    def measured(self) -> bool:
        """Whether measurements said anything of it."""
        return self.measured_transport or any(constant.measured for constant in self.constants.values())

    @property
    def measured_transport(self) -> bool:
        """Whether measurements of collectives said anything of the transport."""
        return bool(self.fitted_names or self.curves) or self.residual_low is not None

    def with_values(
        self, values: Mapping[str, float], *, source: str, log_std: Mapping[str, float] | None = None
    ) -> Calibration:
        """Return a copy in which `values` replace constants of the same names, marked as fitted."""
        stds = log_std or {}
        new = {
            name: replace(self.constants[name], value=value, source=source, fitted=True, log_std=stds.get(name))
            for name, value in values.items()
        }
        return replace(self, constants={**self.constants, **new})

    def document(self) -> dict[str, object]:
        """Return the calibration as the JSON document `ddpsim.calibration/1`."""
        return {
            "schema": SCHEMA,
            "backend": self.backend,
            "constants": [
                {
                    "name": c.name,
                    "value": c.value,
                    "unit": c.unit,
                    "source": c.source,
                    "fitted": c.fitted,
                    "log_std": c.log_std,
                }
                for c in self.constants.values()
            ],
            "fitted_names": list(self.fitted_names),
            "covariance": [list(row) for row in self.covariance],
            "residual_low": self.residual_low,
            "residual_high": self.residual_high,
            "curves": [
                {
                    "topology": c.topology,
                    "nodes": c.nodes,
                    "gpus_per_node": c.gpus_per_node,
                    "algorithm": c.algorithm,
                    "gpus_per_process": c.gpus_per_process,
                    "points": [[p.size_bytes, p.time_s] for p in c.points],
                }
                for c in self.curves
            ],
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_text(cls, text: str, priors: Mapping[str, Sequence[Constant]], place: str) -> Calibration:
        """Read a `ddpsim.calibration/1` document; constants it lacks are taken from `priors` of its backend.

        Raises:
            CalibrationError: not JSON, another schema, an unknown backend or constant, a value that `Constant.allows`
                does not, a covariance that is not of the fitted constants.
        """
        document = parse_json(text, place, CalibrationError, _REMEDY)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise CalibrationError(
                "not a calibration file",
                place=place,
                remedy=f'expected "schema": "{SCHEMA}"; make one with `ddpsim calibrate`',
            )
        backend = document.get("backend")
        if not isinstance(backend, str) or backend not in priors:
            raise CalibrationError(
                f"unknown backend {backend!r}", place=f"{place}: backend", remedy=f"expected one of {', '.join(priors)}"
            )
        constants = {constant.name: constant for constant in priors[backend]}
        try:
            for number, entry in enumerate(document["constants"]):
                constant = Constant(**entry)
                if constant.name not in constants or not constants[constant.name].allows(constant.value):
                    what = f"constant {constant.name!r} = {constant.value!r} is unknown or out of range"
                    raise CalibrationError(what, place=f"{place}: constants.{number}", remedy=_REMEDY)
                constants[constant.name] = constant
            names = _fitted_names(document["fitted_names"], constants, f"{place}: fitted_names")
            return cls(
                backend=backend,
                constants=constants,
                fitted_names=names,
                covariance=_covariance(document["covariance"], len(names), f"{place}: covariance"),
                residual_low=_residual(document["residual_low"], f"{place}: residual_low"),
                residual_high=_residual(document["residual_high"], f"{place}: residual_high"),
                curves=tuple(
                    Curve(
                        c["topology"],
                        c["nodes"],
                        c["gpus_per_node"],
                        tuple(_point(s, t) for s, t in c["points"]),
                        str(c.get("algorithm", "auto")),
                        int(c.get("gpus_per_process", 1)),
                    )
                    for c in document["curves"]
                ),
                provenance=document["provenance"],
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CalibrationError(f"malformed: {error!r}", place=place, remedy=_REMEDY) from error


def _fitted_names(value: object, known: Mapping[str, Constant], place: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise CalibrationError(f"{value!r} is no list", place=place, remedy=_REMEDY)
    for name in value:
        if not isinstance(name, str) or name not in known:
            raise CalibrationError(f"{name!r} is no constant", place=place, remedy=_REMEDY)
    return tuple(value)


def _covariance(value: object, count: int, place: str) -> tuple[tuple[float, ...], ...]:
    """Return the rows of `value`, `count` of as many finite numbers each."""
    rows = value if isinstance(value, list) else []
    if len(rows) != count or not all(isinstance(row, list) and len(row) == count for row in rows):
        what = f"not {count} rows of {count} numbers, a row for each of fitted_names"
        raise CalibrationError(what, place=place, remedy=_REMEDY)
    for number, row in enumerate(rows):
        for entry in row:
            if isinstance(entry, bool) or not isinstance(entry, int | float) or not abs(entry) <= _LARGEST_RESIDUAL**2:
                what = f"{entry!r} is no covariance of logarithms"
                raise CalibrationError(what, place=f"{place}.{number}", remedy=_REMEDY)
    return tuple(map(tuple, rows))


def _point(size: object, time_s: object) -> CurvePoint:
    point = CurvePoint(int(str(size)), float(str(time_s)))
    if not (point.size_bytes > 0 and 0 < point.time_s < 1e9):
        raise ValueError(f"a curve's point of {size!r} bytes and {time_s!r} s")
    return point


_LARGEST_RESIDUAL = 10.0


def _residual(value: object, place: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST_RESIDUAL:
        raise CalibrationError(f"{value!r} is not the logarithm of an error", place=place)
    return float(value)
