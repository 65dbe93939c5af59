"""Bands of predicted allreduce times: 10th and 90th percentile of what would be measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.curve import CurveTransport
from ddpsim.collectives.execute import make_transport
from ddpsim.collectives.transport import Transport
from ddpsim.common.operation import Operation
from ddpsim.topology.graph import Placement

# 10th and 90th percentile of log(measured / predicted) over doubt, on the held-out rows of the accuracy page's tables:
# `python -m studies.accuracy` prints both (`studies.accuracy.bands.scores`).
_LOW, _HIGH = -1.6, 3.3
NINETIETH = 1.2816
"""The 90th percentile of a normal distribution, in standard deviations."""

_STEP = 1e-4
"""Of the numerical derivatives, in logarithms of constants, as in `ddpsim.calibrating.fitting`; chosen by hand."""


def band_factors(
    placement: Placement,
    calibration: Calibration,
    sizes: Sequence[int],
    *,
    algorithm: str = "auto",
    operation: Operation = Operation.ALLREDUCE,
) -> list[tuple[float, float]]:
    """Return by size the factors from the predicted time of an operation to the ends of its 80 % band.

    Where rows of exactly this machine correct the model, by their doubt at the size. Elsewhere by the covariance of
    the fitted constants, carried to the size to first order, and the residuals of held-out rows.
    """
    transport = _transport(placement, calibration, algorithm)
    doubts = [transport.doubt(size, operation) if isinstance(transport, CurveTransport) else None for size in sizes]
    by_rows = [None if doubt is None else (math.exp(_LOW * doubt), math.exp(_HIGH * doubt)) for doubt in doubts]
    if None not in by_rows:
        return [ends for ends in by_rows if ends is not None]
    constants = NINETIETH * _log_std(placement, calibration, sizes, algorithm, operation)
    low = np.exp(-np.hypot(constants, min(calibration.residual_low or 0.0, 0.0))).tolist()
    high = np.exp(np.hypot(constants, max(calibration.residual_high or 0.0, 0.0))).tolist()
    return [ends or others for ends, others in zip(by_rows, zip(low, high, strict=True), strict=True)]


class Band:
    """The factors of some sizes; any other size has those of the nearest."""

    def __init__(self, factors: Mapping[int, tuple[float, float]]) -> None:
        self._sizes, self._factors = sorted(factors), dict(factors)

    def low(self, size_bytes: int) -> float:
        """Return the factor to the lower end."""
        return self._find_nearest(size_bytes)[0]

    def high(self, size_bytes: int) -> float:
        """Return the factor to the upper end."""
        return self._find_nearest(size_bytes)[1]

    def _find_nearest(self, size_bytes: int) -> tuple[float, float]:
        return self._factors[min(self._sizes, key=lambda size: abs(math.log(size / max(size_bytes, 1))))]


def _log_std(
    placement: Placement, calibration: Calibration, sizes: Sequence[int], algorithm: str, operation: Operation
) -> npt.NDArray[np.float64]:
    """Return by size the standard deviation of log time that the fitted constants leave."""

    def log_times(values: dict[str, float]) -> npt.NDArray[np.float64]:
        transport = _transport(placement, calibration.with_values(values, source="trial"), algorithm)
        return np.log([transport.time_s(operation, size) for size in sizes])

    names = calibration.fitted_names
    if not names:
        return np.zeros(len(sizes))
    now = log_times({})
    jacobian = np.column_stack([log_times({n: calibration[n] * math.exp(_STEP)}) - now for n in names]) / _STEP
    variance = ((jacobian @ np.array(calibration.covariance)) * jacobian).sum(axis=1)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)), dtype=np.float64)


def _transport(placement: Placement, calibration: Calibration, algorithm: str) -> Transport:
    options = CollectiveOptions(algorithm=algorithm, isolated=False)
    return make_transport(placement, calibration.backend, calibration, options)
