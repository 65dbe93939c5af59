"""Steps of several plans, and which of them was measured to be faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

SURE = 0.95
"""Probability, one-sided, at which a plan must be measured faster than the present one to be kept."""
TRIMMED = 0.2
"""Share of the longest, and of the shortest, steps of a plan that do not count: a pause of one step tells nothing of
buckets (Yuen 1974)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What steps of a plan took: their trimmed mean, how many there were, and what they save of the present plan's.

    `saved_s` is the difference of the means, `saved_low_s` what it surely is at least.
    """

    step_s: float
    steps: int
    saved_s: float = 0.0
    saved_low_s: float = 0.0

    @property
    def faster(self) -> bool:
        """Whether it is surely faster."""
        return self.saved_low_s > 0


def compare(steps: Sequence[Sequence[float]], probability: float = SURE) -> list[Measured]:
    """Return what each plan's steps took, the present plan's first, by Yuen's test of trimmed means.

    Args:
        steps: of each plan, seconds.
        probability: one-sided, of what a plan saves at least.
    """
    base, base_error, base_freedom = _trim_mean(steps[0])
    found = [Measured(base, len(steps[0]))]
    for other in steps[1:]:
        mean, error, freedom = _trim_mean(other)
        both = base_error + error
        if both > 0:
            least = both**2 / (base_error**2 / base_freedom + error**2 / freedom)
            margin_s = student(probability, least) * math.sqrt(both)
        else:
            margin_s = 0.0
        found.append(Measured(mean, len(other), base - mean, base - mean - margin_s))
    return found


def _trim_mean(steps: Sequence[float]) -> tuple[float, float, float]:
    """Return the trimmed mean, its squared standard error, and the degrees of freedom."""
    ordered = sorted(steps)
    cut = int(TRIMMED * len(ordered))
    middle = ordered[cut : len(ordered) - cut]
    if len(middle) < 2:
        return fmean(ordered), math.inf, 1.0
    winsorised = [middle[0]] * cut + middle + [middle[-1]] * cut
    spread = variance(winsorised) * (len(ordered) - 1)
    return fmean(middle), spread / (len(middle) * (len(middle) - 1)), float(len(middle) - 1)


def student(probability: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution, to 1 % from 3 degrees of freedom on.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.5.

    >>> round(student(0.95, 10), 2)
    1.81
    """
    x = NormalDist().inv_cdf(probability)
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
    )
    return x + sum(term / freedom**power for power, term in enumerate(terms, 1))
