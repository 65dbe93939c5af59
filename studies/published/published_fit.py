"""The few costs that a one-GPU table cannot tell, fitted to the published rows within non-negative values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from studies.published.published_table import GPUS, Case, Measured, Predictor, Times

Vector = npt.NDArray[np.float64]

START = {
    "copy_s": 5e-6,
    "pace_spread": 0.02,
    "shared_compute_slowdown": 1.01,
    "tail_share": 0.2,
}
_FLOOR = {"shared_compute_slowdown": 1.0}
_ROUNDS = 3

SHARE, CAP_S = 0.25, 0.5e-3
"""What an overhead and a difference between caps should be right to; errors are weighed by it."""


@dataclass(frozen=True)
class Target:
    """A measured difference of two rows, and the error that counts as one."""

    case: Case
    base: Case
    measured: Measured
    unit_s: float


def targets(medians: Times, quartiles: Times, models: Sequence[str]) -> list[Target]:
    """Return what is fitted: DDP on one GPU, overheads over that, and what a cap of 1 MiB adds beyond one GPU."""
    found = []
    for model in models:
        for gpus in GPUS:
            base = Case(model, 0 if gpus == 1 else 1)
            over = medians[Case(model, gpus)].minus(medians[base])
            found.append(Target(Case(model, gpus), base, over, max(SHARE * over.middle, over.half)))
        for gpus in GPUS[1:]:
            more = cap_difference(quartiles, model, gpus)
            if not more.noisy:
                found.append(Target(Case(model, gpus, 1), Case(model, gpus), more, max(CAP_S, more.half)))
    return found


def cap_difference(quartiles: Times, model: str, gpus: int) -> Measured:
    """Return what a cap of 1 MiB adds to a step, less what it adds on one GPU, where nothing is sent."""
    one, many = (quartiles[Case(model, count, 1)].minus(quartiles[Case(model, count)]) for count in (1, gpus))
    return many.minus(one)


def fit(predictor: Predictor, found: Sequence[Target]) -> dict[str, float]:
    """Return the constants of least squared error, each counted in its target's unit (Gauss-Newton)."""
    floor = np.array([_FLOOR.get(name, 0.0) for name in START])
    scale = np.array(list(START.values())) - floor
    measured = np.array([target.measured.middle for target in found])
    units = np.array([target.unit_s for target in found])

    def predicted(x: Vector) -> Vector:
        constants = dict(zip(START, (floor + scale * x).tolist(), strict=True))
        return np.array([differences(predictor, target, constants) for target in found])

    x = np.ones(len(scale))
    for _ in range(_ROUNDS):
        now = predicted(x)
        jacobian = _jacobian(predicted, x, now)
        x = nonnegative(jacobian / units[:, None], (measured - now + jacobian @ x) / units)
    return dict(zip(START, (floor + scale * x).tolist(), strict=True))


def differences(predictor: Predictor, target: Target, constants: dict[str, float]) -> float:
    """Return the predicted difference of `target`."""
    return predictor.seconds(target.case, constants) - predictor.seconds(target.base, constants)


def _jacobian(function: Callable[[Vector], Vector], x: Vector, here: Vector, step: float = 0.2) -> Vector:
    columns = [(function(x + step * unit) - here) / step for unit in np.eye(len(x))]
    return np.column_stack(columns)


def nonnegative(matrix: Vector, target: Vector) -> Vector:
    """Return the non-negative least squares solution, by trying every set of positive entries."""
    count = matrix.shape[1]
    best, best_error = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for chosen in combinations(range(count), size):
            x = np.zeros(count)
            x[list(chosen)] = np.linalg.lstsq(matrix[:, chosen], target, rcond=None)[0]
            error = float(((matrix @ x - target) ** 2).sum())
            if (x >= 0).all() and error < best_error - 1e-12:
                best, best_error = x, error
    return best
