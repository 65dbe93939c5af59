"""A calibration: the constants of a transport with their origin, and the error that measurements left them.

Constants have physical meaning (an efficiency, a latency, a cost), a unit, and a source. Without measurements they are
documented priors; fitting (`ddpsim.calibrating.calibrate`) replaces some. The type knows nothing of fitting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from ddpsim.collectives.codec_priors import CODEC_PRIORS
from ddpsim.collectives.constant import Constant
from ddpsim.collectives.ddp_priors import DDP_PRIORS
from ddpsim.collectives.transport_priors import GLOO_PRIORS, MPI_PRIORS, NCCL_PRIORS, RCCL_PRIORS
from ddpsim.common.documents.fields import STATED, WRITTEN, AsRows, Bounds, ByName, document_of
from ddpsim.common.errors import UnknownNameError
from ddpsim.common.operation import Operation

PRIORS: Mapping[str, tuple[Constant, ...]] = {
    "gloo": (*GLOO_PRIORS, *DDP_PRIORS["gloo"], *CODEC_PRIORS["gloo"]),
    "nccl": (*NCCL_PRIORS, *DDP_PRIORS["nccl"], *CODEC_PRIORS["nccl"]),
    "mpi": (*MPI_PRIORS, *DDP_PRIORS["mpi"], *CODEC_PRIORS["mpi"]),
    "rccl": (*RCCL_PRIORS, *DDP_PRIORS["rccl"], *CODEC_PRIORS["rccl"]),
}
"""Every constant by backend, as it is without measurements: the transport's, and what DDP and its codecs cost on it."""


_LARGEST_RESIDUAL = 10.0
"""Of the logarithm of an error: more than any measurement leaves."""
_Ranks = Annotated[int, Bounds(gt=0, lt=1 << 31)]
_Residual = Annotated[float, Bounds(ge=-_LARGEST_RESIDUAL, le=_LARGEST_RESIDUAL)]
_Covariance = Annotated[float, Bounds(ge=-(_LARGEST_RESIDUAL**2), le=_LARGEST_RESIDUAL**2)]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A measured collective, which took `time_s` for `size_bytes`."""

    size_bytes: Annotated[int, Bounds(gt=0, lt=1 << 63)]
    time_s: Annotated[float, Bounds(gt=0, lt=1e9)]


@dataclass(frozen=True, slots=True)
class Curve:
    """Measured rows for exactly one machine and rank count; they correct the model there and nowhere else.

    Attributes:
        algorithm: the one that was forced, which they correct alone, or `auto`.
        gpus_per_process: more than one where one process launched on several GPUs.
        operation: the one that was measured.
    """

    topology: str
    nodes: _Ranks
    gpus_per_node: _Ranks
    points: Annotated[tuple[CurvePoint, ...], AsRows()]
    algorithm: Annotated[str, WRITTEN] = "auto"
    gpus_per_process: Annotated[_Ranks, WRITTEN] = 1
    operation: Annotated[Operation, WRITTEN] = Operation.ALLREDUCE


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants by name, with the spread that measurements left them.

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

    SCHEMA: ClassVar = "ddpsim.calibration/1"
    KIND: ClassVar = "calibration file"

    backend: str
    constants: Annotated[Mapping[str, Constant], ByName()]
    fitted_names: Annotated[tuple[str, ...], STATED] = ()
    covariance: Annotated[tuple[tuple[_Covariance, ...], ...], STATED] = ()
    residual_low: Annotated[_Residual | None, STATED] = None
    residual_high: Annotated[_Residual | None, STATED] = None
    curves: Annotated[tuple[Curve, ...], STATED] = ()
    provenance: Annotated[Mapping[str, object], STATED] = field(default_factory=dict)

    def __repr__(self) -> str:
        fitted = sum(constant.fitted for constant in self.constants.values())
        what = f"{len(self.constants)} constants, {fitted} fitted, {len(self.curves)} curves"
        return f"<Calibration: {self.backend}, {what}>"

    def __getitem__(self, name: str) -> float:
        """Return the value of constant `name` in its own unit."""
        return self.constants[name].value

    @property
    def measured(self) -> bool:
        """Whether any of it comes from measurements."""
        return self.measured_transport or any(constant.measured for constant in self.constants.values())

    @property
    def measured_transport(self) -> bool:
        """Whether anything of the transport comes from measured collectives."""
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
        found: dict[str, object] = document_of(self)
        return found

    @classmethod
    def priors(cls, backend: str) -> Calibration:
        """Return the calibration of `backend` without measurements: every constant at its documented value.

        Raises:
            UnknownNameError: a backend that is not modelled.
        """
        if backend not in PRIORS:
            raise UnknownNameError.among("backend", backend, PRIORS)
        return cls(backend, {constant.name: constant for constant in PRIORS[backend]})
