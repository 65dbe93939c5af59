"""Derive `ddpsim.workload.gpus.EAGER` from the first half of the published steps: `python -m
studies.estimates.estimates_fit`.

Coordinate descent on the mean of the errors' logarithms, each counted up to one half so that no outlier rules, and each
machine of a source as one. Products in 16 bits are the same library's kernels in steps whose other kernels were fused
by hand, which judge that share too; of all else those take no part. The cost of a launch is not fitted: one machine's
host is no other's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

from ddpsim.bucketing import Parameter
from ddpsim.topology.gpus.table import GpuSpec
from ddpsim.workload.gpus import (
    EAGER,
    FUSED,
    AchievedGpu,
    AchievedPeaks,
    PeakShares,
    fitted_peaks,
    gpu_named,
    make_peaks,
)
from ddpsim.workload.operators import Operator
from ddpsim.workload.optimizers import Optimizer, optimizer_of_kind
from ddpsim.workload.roofline import operator_s
from ddpsim.workload.timeline import ACCUMULATE_S, BACKWARD_LAUNCH_S, EAGER_LAUNCH_S, FORWARD_LAUNCH_S
from studies.command import parser
from studies.estimates import step_shapes
from studies.estimates.one_gpu_steps import Step, steps

BEGIN = PeakShares(
    0.896, 0.9, 0.257, 0.5, 0.5, 0.71, 0.9, 2.03, gemm_fp32_wide=0.6, attention=EAGER.attention, memory=0.8
)  # fmt: skip
_MOST, _ROUNDS, _FIRST, _SHRINK = 0.5, 14, 0.2, 0.8
_BOUNDS = {"layout": math.inf, "memory": 0.93}
"""Of all other shares 1. No published copy kernel has more of the bandwidth (BabelStream)."""
_PRIORS = ("attention",)
_ACCUMULATE_PASSES = 3
"""A later micro-step reads two gradients and writes their sum."""

WRITTEN_OUT = Optimizer("adamw-written-out", 33, 14, True, 300e-6, 154e-6)
"""AdamW an operator at a time for each parameter, as CS336's: fourteen kernels, at the launch cost of eager mode."""


def gpu_of(step: Step) -> AchievedGpu:
    """Return the GPU of `step` with the shares that its kernels reach."""
    gpu = gpu_named(step.gpu).with_fitted()
    return gpu.with_fused() if step.fused else gpu


def optimizer_of(step: Step) -> Optimizer:
    """Return the optimizer of `step`."""
    found = WRITTEN_OUT if step.optimizer == WRITTEN_OUT.name else optimizer_of_kind(step.optimizer)
    assert found is not None, step.optimizer
    return found


@dataclass(frozen=True, slots=True)
class Counted:
    """A published step's operators, equal ones together.

    Attributes:
        step: as it was published.
        phases: operators of forward and backward with how often each occurs.
        parameters: of the model.
    """

    step: Step
    phases: tuple[Counter[Operator], ...]
    parameters: tuple[Parameter, ...]

    def works_s(self, gpu: AchievedGpu) -> list[float]:
        """Return the device's time of all forwards, all backwards, and of the optimizer."""
        step, size_bytes = self.step, sum(parameter.size_bytes for parameter in self.parameters)
        forward, backward = (
            sum(operator_s(operator, gpu, step.precision) * count for operator, count in phase.items())
            for phase in self.phases
        )
        added = (step.accumulation - 1) * _ACCUMULATE_PASSES * size_bytes / gpu.achieved_Bps
        update = optimizer_of(step).works_s(self.parameters, gpu.achieved_Bps, gpu.achieved.kernel_s)
        return [step.accumulation * forward, step.accumulation * backward + added, sum(update)]

    def host_s(self) -> list[float]:
        """Return the host's time of the same three."""
        each_s = (FORWARD_LAUNCH_S, BACKWARD_LAUNCH_S) if self.step.fused else (EAGER_LAUNCH_S, EAGER_LAUNCH_S)
        forward, backward = (each * phase.total() for each, phase in zip(each_s, self.phases, strict=True))
        gradients, many = ACCUMULATE_S * len(self.parameters), self.step.accumulation
        return [many * forward, many * (backward + gradients), optimizer_of(self.step).host_s(len(self.parameters))]

    def seconds(self, gpu: AchievedGpu) -> float:
        """Return the predicted step: the longer of host and device."""
        return max(sum(self.works_s(gpu)), sum(self.host_s()))


@cache
def counted(step: Step) -> Counted:
    """Return the operators of `step`."""
    found = step_shapes.kernels(step)
    return Counted(step, (found.forward, found.backward), found.parameters)


def _peaks(spec: GpuSpec, shares: PeakShares, *, fused: bool) -> AchievedPeaks:
    """Return what a step reaches with `shares`; of one that is fused by hand, products in 16 bits alone take them."""
    return make_peaks(spec, replace(FUSED, gemm_half=shares.gemm_half)) if fused else fitted_peaks(spec, shares)


def loss(rows: Sequence[Counted], shares: PeakShares) -> float:
    """Return the mean error of `shares` on `rows`, each machine of a source as one."""
    errors: dict[tuple[str, str, bool], list[float]] = {}
    for row in rows:
        spec = gpu_named(row.step.gpu).spec
        predicted = row.seconds(AchievedGpu(spec, _peaks(spec, shares, fused=row.step.fused)))
        error = min(abs(math.log(predicted / row.step.seconds)), _MOST)
        errors.setdefault((row.step.source, row.step.gpu, row.step.fused), []).append(error)
    return sum(sum(each) / len(each) for each in errors.values()) / len(errors)


def fit(rows: Sequence[Counted], begin: PeakShares = BEGIN, rounds: int = _ROUNDS) -> PeakShares:
    """Return the shares nearest to `rows`, three digits each; none is above its bound."""
    best, by = begin, _FIRST
    least = loss(rows, best)
    for _ in range(rounds):
        factors = (1 + by, 1 / (1 + by), 1 + by / 3, 1 / (1 + by / 3))
        for name, factor in ((n, f) for n in asdict(begin) if n not in _PRIORS for f in factors):
            value = min(getattr(best, name) * factor, _BOUNDS.get(name, 1.0))
            tried = replace(best, **{name: value})
            if (error := loss(rows, tried)) < least - 1e-6:
                best, least = tried, error
        by *= _SHRINK
    return PeakShares(**{name: float(f"{value:.3g}") for name, value in asdict(best).items()})


def band(rows: Sequence[Counted], shares: PeakShares) -> tuple[float, float]:
    """Return the 10th and 90th percentile of log(published / predicted), each machine of a source as one."""
    machines = Counter((row.step.source, row.step.gpu) for row in rows)
    errors = []
    for row in rows:
        spec = gpu_named(row.step.gpu).spec
        predicted = row.seconds(AchievedGpu(spec, fitted_peaks(spec, shares)))
        weight = 1 / machines[row.step.source, row.step.gpu] / len(machines)
        errors.append((math.log(row.step.seconds / predicted), weight))
    low, high = (_percentile(sorted(errors), share) for share in (0.1, 0.9))
    return round(low, 2), round(high, 2)


def _percentile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    below = 0.0
    for value, weight in weighted:
        below += weight
        if below >= share:
            return value
    return weighted[-1][0]


if __name__ == "__main__":
    parser(__doc__).parse_args()
    first_half = [counted(step) for step in steps() if step.fitted]
    found = fit(first_half)
    print(found)
    print(f"band {band([row for row in first_half if not row.step.fused], found)}")
    print(f"mean error {loss(first_half, found):.3f}, of the shares in force {loss(first_half, EAGER):.3f}")
