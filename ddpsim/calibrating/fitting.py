"""Robust maximum a posteriori fit of positive constants to measured times, on logarithms throughout.

Levenberg-Marquardt with a numerical Jacobian; each constant has a log-normal prior, each row's log error a Huber loss
(Huber 1964, k = 1.345), their scale estimated from the residuals. The covariance is the inverse of the curvature at
the solution (Laplace's approximation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

HUBER = 1.345
"""Scales beyond which a row counts linearly: 95 % efficient where errors are normal (Huber 1964)."""

_ROUNDS = 40
"""Steps of Levenberg-Marquardt at most; chosen by hand, fits here end sooner."""
_SMALLEST_SCALE = 0.01
"""Rows agree to no better than 1 %, which is what nccl-tests repeats to; fewer rows would else fit exactly."""

_FIRST_SCALE = 0.05
"""Scale of log errors from which the search starts; chosen by hand, the fit estimates it anew."""
_OUTLIER = 5.0
"""Scales from which on a row is named as an outlier; nothing is left out for it."""

_STEP = 1e-4
"""Of the numerical derivatives, in logarithms of constants; chosen by hand."""
# A constant is determined where the rows took at least this much off its prior's standard deviation.
_DETERMINED = 0.9


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known of a constant before the rows: its median, and the standard deviation of its logarithm."""

    value: float
    log_std: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted set of constants.

    Attributes:
        values: by name, in the order of `covariance`.
        covariance: of their natural logarithms.
        residuals: log(measured / fitted) by row.
        scale: robust standard deviation of the residuals.
        loss: of rows and priors together, were the rows good to 5 %; the least is the best of several models.
        outliers: rows more than five scales off.
        undetermined: constants that the rows hardly narrow; they stay near their priors.
        unused: constants that no row depends on; not among `values`.
    """

    values: Mapping[str, float]
    covariance: Vector
    residuals: Vector
    scale: float
    loss: float
    outliers: tuple[int, ...]
    undetermined: tuple[str, ...]
    unused: tuple[str, ...] = ()


Predict = Callable[[Mapping[str, float]], Vector]


def fit(
    predict: Predict,
    priors: Mapping[str, Prior],
    measured: Vector,
    near: Mapping[str, float] | None = None,
    bend: float = HUBER,
) -> Fit:
    """Return the constants that best explain `measured` times, and how sure they are.

    Args:
        predict: constants by name to predicted times, a row each, in the unit of `measured`.
        priors: what is fitted; a constant that is not in it is `predict`'s own business.
        near: values to start from, by default the priors'; a good guess saves rounds.
        bend: scales beyond which a row counts linearly.
    """
    unused = _find_unused(_Problem(predict, priors, np.log(measured)))
    problem = _Problem(predict, {name: p for name, p in priors.items() if name not in unused}, np.log(measured), bend)
    # The scale weighs rows against priors, and is not known before the fit. First as if the rows were good, so that
    # they and not the priors decide; then with the scatter that is left.
    theta, residuals = _minimise(problem, problem.choose_start(near or {}), _FIRST_SCALE)
    loss = problem.loss(theta, residuals, _FIRST_SCALE)
    scale = _scale(residuals, problem.parameters_used(theta, residuals, _FIRST_SCALE))
    theta, residuals = _minimise(problem, theta, scale)
    covariance = problem.covariance(theta, residuals, scale)
    # Posterior over prior: what the rows have narrowed by less than a tenth they do not determine.
    known = np.sqrt(np.diag(covariance)) < _DETERMINED * problem.stds
    return Fit(
        values=problem.values(theta),
        covariance=covariance,
        residuals=residuals,
        scale=scale,
        loss=loss,
        outliers=tuple(int(row) for row in np.flatnonzero(np.abs(residuals) > _OUTLIER * scale)),
        undetermined=tuple(name for name, sure in zip(problem.names, known, strict=True) if not sure),
        unused=unused,
    )


def find_dominant_constant(predict: Predict, priors: Mapping[str, Prior], measured: Vector) -> str:
    """Return the constant that the rows depend on most: whose prior's spread moves the predicted times most."""
    problem = _Problem(predict, priors, np.log(measured))
    moved = np.abs(problem.jacobian(problem.centre, problem.residuals(problem.centre)) * problem.stds).sum(axis=0)
    return problem.names[int(moved.argmax())]


def _minimise(problem: _Problem, theta: Vector, scale: float) -> tuple[Vector, Vector]:
    """Return the logarithms of the constants of least loss, and their residuals.

    Levenberg-Marquardt with Marquardt's scaling: the curvature's diagonal is raised by `damping` of itself, by more
    until the step lowers the loss, and by less after each step that does. Invariant: the loss never grows.
    """
    residuals, damping = problem.residuals(theta), 1e-2
    for _ in range(_ROUNDS):
        gradient, curvature = problem.derivatives(theta, residuals, scale)
        before = problem.loss(theta, residuals, scale)
        while damping < 1e6:
            step = -np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
            tried = problem.residuals(theta + step)
            if problem.loss(theta + step, tried, scale) <= before:
                break
            damping *= 4
        else:
            break  # no step lowers the loss: a minimum, as far as numbers tell
        theta, residuals, damping = theta + step, tried, max(damping / 8, 1e-9)
        if np.abs(step).max(initial=0.0) < 1e-3:
            break
    return theta, residuals


def _find_unused(problem: _Problem) -> tuple[str, ...]:
    """Return the constants that no residual depends on at their priors."""
    jacobian = problem.jacobian(problem.centre, problem.residuals(problem.centre))
    return tuple(name for name, column in zip(problem.names, jacobian.T, strict=True) if not column.any())


class _Problem:
    """The loss of a fit, its derivatives and its curvature.

    `theta` are the logarithms of the constants, in the order of `names`. The loss is the sum of Huber's function of
    residual / scale over rows and of half the squared distance from the prior, in its standard deviations, over
    constants.
    """

    def __init__(self, predict: Predict, priors: Mapping[str, Prior], target: Vector, bend: float = HUBER) -> None:
        self._predict, self._target, self._bend = predict, target, bend
        self.names = list(priors)
        self.centre = np.log([prior.value for prior in priors.values()])
        self.stds = np.array([prior.log_std for prior in priors.values()])

    def choose_start(self, near: Mapping[str, float]) -> Vector:
        """Return the logarithms to start from."""
        known = [near.get(name, math.exp(centre)) for name, centre in zip(self.names, self.centre, strict=True)]
        return np.log(known)

    def values(self, theta: Vector) -> dict[str, float]:
        return dict(zip(self.names, np.exp(theta).tolist(), strict=True))

    def residuals(self, theta: Vector) -> Vector:
        return np.asarray(self._target - np.log(self._predict(self.values(theta))))

    def loss(self, theta: Vector, residuals: Vector, scale: float) -> float:
        size = np.abs(residuals / scale)
        huber = np.where(size < self._bend, size**2 / 2, self._bend * (size - self._bend / 2))
        return float(huber.sum() + (((theta - self.centre) / self.stds) ** 2).sum() / 2)

    def jacobian(self, theta: Vector, residuals: Vector) -> Vector:
        """Return the change of each residual with each logarithm."""
        columns = [(self.residuals(theta + shift) - residuals) / _STEP for shift in np.eye(len(theta)) * _STEP]
        return np.column_stack(columns) if columns else np.zeros((len(residuals), 0))

    def covariance(self, theta: Vector, residuals: Vector, scale: float) -> Vector:
        """Return the inverse of the curvature."""
        return np.asarray(np.linalg.inv(self.derivatives(theta, residuals, scale)[1]), dtype=np.float64)

    def parameters_used(self, theta: Vector, residuals: Vector, scale: float) -> float:
        """Return the effective number of fitted constants: one that its prior holds altogether counts 0.

        The trace of 1 - posterior / prior variance (MacKay 1992).
        """
        held = np.diag(self.covariance(theta, residuals, scale)) / self.stds**2
        return float(len(theta) - held.sum())

    def derivatives(self, theta: Vector, residuals: Vector, scale: float) -> tuple[Vector, Vector]:
        """Return gradient and curvature (Gauss-Newton) of the loss at `theta`."""
        jacobian = self.jacobian(theta, residuals)
        # Huber's loss as reweighted squares: a row beyond the bend pulls with constant force.
        weights = np.minimum(1.0, self._bend * scale / np.maximum(np.abs(residuals), 1e-12)) / scale**2
        gradient = jacobian.T @ (weights * residuals) + (theta - self.centre) / self.stds**2
        return gradient, (jacobian.T * weights) @ jacobian + np.diag(1 / self.stds**2)


def _scale(residuals: Vector, used: float) -> float:
    """Return 1.4826 times the median absolute residual, a robust standard deviation, widened for `used` constants."""
    freedom = max(1 - used / len(residuals), 0.1)
    return max(1.4826 * float(np.median(np.abs(residuals))) / float(np.sqrt(freedom)), _SMALLEST_SCALE)
