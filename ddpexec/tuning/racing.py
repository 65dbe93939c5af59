"""A race of bucket plans in blocks of steps: which plan runs next, which is given up, when enough is known. No torch.

The present plan runs in each round among those still in the race, A B C then C B A, and a plan is compared with the
present plan's steps of the same rounds: what else changes on a machine meets both. A plan that is surely slower after
its first block runs no more. `compare` judges by Yuen's test of trimmed means.
"""

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
    results = [Measured(base, len(steps[0]))]
    for other in steps[1:]:
        mean, error, freedom = _trim_mean(other)
        both = base_error + error
        if both > 0:
            least = both**2 / (base_error**2 / base_freedom + error**2 / freedom)
            margin_s = student(probability, least) * math.sqrt(both)
        else:
            margin_s = 0.0
        results.append(Measured(mean, len(other), base - mean, base - mean - margin_s))
    return results


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


PRESENT = 0
"""Number of the present plan."""
BLOCK = 4
"""Steps of a block that count: the fewest of which a spread can be told."""
GIVEN_UP = 0.9
"""Probability, one-sided, at which a plan that saves too little, or less than another, is given up."""
CLEAR = 0.995
"""Probability, one-sided, at which a plan is taken for faster before the steps are used up."""
CLEAR_STEPS = 12
"""Steps of the plan, and of the present one, from which on that may be told."""
TOO_LITTLE = 0.004
"""Saving, a share of the step, below which a plan is not looked into: less than the 1 % that is worth it, by as much as
steps measured in so few blocks are apart. By hand."""
FINALISTS = 2
"""Plans beside the present one that run after the first round."""


class Race:
    """A race of plans; `take` gets the steps of all ranks.

    Args:
        plans: how many, the present one first.
    """

    def __init__(self, plans: int) -> None:
        self.running = [number for number in range(plans) if number != PRESENT]
        self._rounds: list[dict[int, list[float]]] = []
        self._plans, self._queue = plans, list[int]()

    def add(self) -> int:
        """Let one more plan run, from a new round on; return its number."""
        self.running.append(self._plans)
        self._plans += 1
        self._queue.clear()
        return self.running[-1]

    def turn(self) -> tuple[int, int] | None:
        """Return which plan runs next, and for how many steps that count; None where enough is known."""
        while self.running:
            if not self._queue:
                if len(self.running) == 1 and self._is_clear(self.running[0]):
                    return None
                self._queue = self._plan_round()
            plan = self._queue.pop(0)
            if plan == PRESENT or plan in self.running:
                return plan, BLOCK
        return None

    def take(self, plan: int, seconds: Sequence[float]) -> None:
        """Take the steps of a block."""
        self._rounds[-1][plan] = list(seconds)
        self.running = [each for each in self.running if not self._is_hopeless(each)]

    def measure(self, probability: float = SURE) -> list[Measured]:
        """Return each plan's steps, what they save held against the present plan's of the same rounds."""
        steps, _ = self._select_same_rounds(PRESENT, PRESENT)
        return [
            compare([steps])[0],
            *(self._compare_with(each, PRESENT, probability) for each in range(1, self._plans)),
        ]

    def choose_plan(self) -> int:
        """Return which plan stays: what surely saves most of those faster than the present one, else that.

        One block alone decides nothing. Each plan more that is tried is one more chance to be wrong, so that all share
        the 5 %.
        """
        measured = self.measure()
        tried = max(1, sum(each.steps > 0 for each in measured[1:]))
        sure = self.measure(1 - (1 - SURE) / tried)
        faster = [number for number, each in enumerate(sure) if each.faster and each.steps >= 2 * BLOCK]
        return max(faster, key=lambda number: sure[number].saved_low_s, default=PRESENT)

    # ---- who runs on

    def _plan_round(self) -> list[int]:
        if len(self._rounds) > 0 and self._rounds[0].keys() >= {*self.running}:
            self.running.sort(key=lambda each: -self._compare_with(each, PRESENT, SURE).saved_s)
            del self.running[FINALISTS:]
        self._rounds.append({})
        order = [PRESENT, *self.running]
        return order if len(self._rounds) % 2 else order[::-1]

    def _is_clear(self, plan: int) -> bool:
        seen = self._compare_with(plan, PRESENT, CLEAR)
        return seen.steps >= CLEAR_STEPS and seen.faster

    def _is_hopeless(self, plan: int) -> bool:
        """Whether a plan surely saves too little, or is surely slower than another one in the race."""
        seen = self._compare_with(plan, PRESENT, GIVEN_UP)
        if not seen.steps or not self._select_same_rounds(PRESENT, plan)[0]:
            return False
        most_s = seen.saved_s + (seen.saved_s - seen.saved_low_s)
        if most_s < TOO_LITTLE * seen.step_s:
            return True
        others = [self._compare_with(each, plan, GIVEN_UP) for each in self.running if each != plan]
        return any(each.faster and each.steps >= 2 * BLOCK for each in others)

    def _compare_with(self, plan: int, base: int, probability: float) -> Measured:
        """Return what a plan took and saved of `base` in the rounds in which both ran; nothing where there is none."""
        steps = self._select_same_rounds(base, plan)
        return compare(steps, probability)[1] if all(steps) else Measured(0.0, 0)

    def _select_same_rounds(self, base: int, plan: int) -> tuple[list[float], list[float]]:
        both = [each for each in self._rounds if base in each and plan in each]
        return [s for each in both for s in each[base]], [s for each in both for s in each[plan]]
