"""Derive `ddpsim.workload.achieved.Shares` from the first half of the published steps: `python -m
studies.estimates.estimates_fit`.

Coordinate descent on the mean of the errors' logarithms, each counted up to one half so that no outlier rules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache

from ddpsim.bucketing import Parameter
from ddpsim.workload.achieved import Shares, fitted
from ddpsim.workload.estimate import operator_s
from ddpsim.workload.gpus import AchievedGpu, gpu_named
from ddpsim.workload.operators import Operator
from ddpsim.workload.optimizers import optimizer_named
from ddpsim.workload.timeline import Timeline
from studies.estimates import step_shapes
from studies.estimates.one_gpu_steps import Step, steps

BEGIN = Shares(0.77, 0.7, 0.3, 0.5, 0.6, 0.7, 0.9, 2.0)
_MOST, _ROUNDS, _FIRST, _SHRINK = 0.5, 16, 0.2, 0.8
_ACCUMULATE_PASSES = 3
"""A later micro-step reads two gradients and writes their sum."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A published step's operators, equal ones together.

    Attributes:
        step: as it was published.
        phases: operators of forward and backward with how often each occurs.
        parameters: of the model.
        host_s: host time of forward, backward and optimizer.
    """

    step: Step
    phases: tuple[dict[Operator, int], ...]
    parameters: tuple[Parameter, ...]
    host_s: tuple[float, ...]

    def works_s(self, gpu: AchievedGpu) -> list[float]:
        """Return the device's time of all forwards, all backwards, and of the optimizer."""
        step, size_bytes = self.step, sum(parameter.size_bytes for parameter in self.parameters)
        forward, backward = (
            sum(operator_s(operator, gpu, step.precision) * count for operator, count in phase.items())
            for phase in self.phases
        )
        added = (step.accumulation - 1) * _ACCUMULATE_PASSES * size_bytes / gpu.achieved_Bps
        update = optimizer_named(step.optimizer).works_s(self.parameters, gpu.achieved_Bps, gpu.achieved.kernel_s)
        return [step.accumulation * forward, step.accumulation * backward + added, sum(update)]

    def seconds(self, gpu: AchievedGpu) -> float:
        """Return the predicted step: the longer of host and device."""
        return max(sum(self.works_s(gpu)), sum(self.host_s))


@cache
def counted(step: Step) -> Counted:
    """Return the operators of `step`."""
    shape = step_shapes.shape(step)
    forward, backward = (_together(operators) for operators in (shape.forward, shape.backward))
    host = Timeline(
        [[0.0] * len(shape.forward), [0.0] * len(shape.backward), []],
        [operator.gradients for operator in shape.backward],
        optimizer_named(step.optimizer).host_s(len(shape.parameters)),
    ).host_s
    times = (step.accumulation * host[0], step.accumulation * host[1], host[2])
    return Counted(step, (forward, backward), shape.parameters, times)


def _together(operators: Iterable[Operator]) -> dict[Operator, int]:
    found: dict[Operator, int] = {}
    for operator in operators:
        key = replace(operator, gradients=())
        found[key] = found.get(key, 0) + 1
    return found


def loss(rows: list[Counted], shares: Shares) -> float:
    """Return the mean error of `shares` on `rows`."""
    errors = []
    for row in rows:
        spec = gpu_named(row.step.gpu).spec
        error = abs(math.log(row.seconds(AchievedGpu(spec, fitted(spec, shares))) / row.step.seconds))
        errors.append(min(error, _MOST))
    return sum(errors) / len(errors)


def fit(rows: list[Counted], begin: Shares = BEGIN) -> Shares:
    """Return the shares nearest to `rows`, three digits each; none is above the peak."""
    best, least, by = begin, loss(rows, begin), _FIRST
    for _ in range(_ROUNDS):
        for name in asdict(begin):
            for factor in (1 + by, 1 / (1 + by), 1 + by / 3, 1 / (1 + by / 3)):
                value = getattr(best, name) * factor
                tried = replace(best, **{name: value if name == "layout" else min(value, 1.0)})
                if (error := loss(rows, tried)) < least - 1e-6:
                    best, least = tried, error
        by *= _SHRINK
    return Shares(**{name: float(f"{value:.3g}") for name, value in asdict(best).items()})


if __name__ == "__main__":
    first_half = [counted(step) for step in steps() if step.fitted]
    found = fit(first_half)
    print(found)
    print(f"mean error {loss(first_half, found):.3f}, of the shares in force {loss(first_half, Shares()):.3f}")
