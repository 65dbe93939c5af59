"""The choice of the tuner held against an exhaustive sweep, and against a search that knows no model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from ddpexec.tuning.racing import compare

OWN_STEPS = 2
"""Steps of any training in which torch builds its buckets and builds them anew."""
TOLD_APART = 1.002
"""Ratio of two plans' steps that a sweep tells apart: the error to which it measures, `SURE_TO` of `sweep.py`."""
TRIALS, TRIAL_STEPS = 20, 10
"""Plans that the blind search tries, and steps of each (Horovod's autotune: HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE)."""


def usual(plan: Mapping[str, Any]) -> float:
    """Return a plan's step: the mean of its steps without the longest and the shortest fifth."""
    return _usual(plan["blocks"])


def _usual(blocks: Sequence[Sequence[float]]) -> float:
    steps = sorted(second for block in blocks for second in block)
    cut = len(steps) // 5
    return fmean(steps[cut : len(steps) - cut])


def same(caps: Mapping[str, Any], call: str) -> bool:
    """Whether a line is the call with these caps."""
    arguments = "".join(f", {name}={value}" for name, value in caps.items())
    return call == f"DistributedDataParallel(model{arguments})"


@dataclass(frozen=True, slots=True)
class Judged:
    """One configuration's row: steps in seconds, the rest shares.

    Attributes:
        default_best: whether no plan of the sweep is faster than torch's default by more than is told apart.
        over_best_apart: the kept plan's step over the best one's, where the best is picked by half of the passes and
            both are timed by the other half, the mean of both ways: the least of several noisy means is too low.
        lost: what the steps until it was decided took beyond as many of the present plan's, of those.
    """

    kept: str
    best_s: float
    default_s: float
    kept_s: float
    over_best_apart: float
    steps: int
    lost: float
    blind_over_best: float
    blind_lost: float
    blind_steps: int = TRIALS * TRIAL_STEPS

    @property
    def over_best(self) -> float:
        """The kept plan's step over the best one's."""
        return self.kept_s / self.best_s

    @property
    def over_default(self) -> float:
        """The kept plan's step over that of torch's default."""
        return self.kept_s / self.default_s

    @property
    def default_best(self) -> bool:
        """Whether torch's default is the best of the sweep."""
        return self.default_s <= TOLD_APART * self.best_s


def judged(tuning: Mapping[str, Any], steps: Sequence[float], plans: Sequence[Mapping[str, Any]]) -> Judged:
    """Return one configuration's row.

    Args:
        tuning: the tuner's page.
        steps: seconds of each step until it was decided, the tuner's own time included.
        plans: of the sweep, torch's default first.

    Raises:
        ValueError: the kept plan was not swept.
    """
    first = tuning["rounds"][0]
    taken = [usual(plan) for plan in plans]
    kept = next((plan for plan in plans if same(plan["caps"], first["kept"])), None)
    if kept is None:
        raise ValueError(f"{first['kept']} was not swept")
    found, lost = blind([plan["caps"] for plan in plans], taken)
    counted = steps[OWN_STEPS : first["steps"]]
    usual_s = first["present_step_s"]
    return Judged(
        kept=first["kept"],
        best_s=min(taken),
        default_s=taken[0],
        kept_s=usual(kept),
        over_best_apart=_over_best_apart(kept, plans),
        steps=first["steps"],
        lost=(sum(counted) - usual_s * len(counted)) / (usual_s * first["steps"]),
        blind_over_best=found / min(taken),
        blind_lost=lost,
    )


def _over_best_apart(kept: Mapping[str, Any], plans: Sequence[Mapping[str, Any]]) -> float:
    passes = len(kept["blocks"])
    halves = [slice(None, passes // 2), slice(passes // 2, None)]
    ratios = []
    for picked, timed in (halves, halves[::-1]):
        best = min(again(plans), key=lambda plan: _usual(plan["blocks"][picked]))
        ratios.append(_usual(kept["blocks"][timed]) / _usual(best["blocks"][timed]))
    return fmean(ratios)


def again(plans: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the plans that were measured by turns: torch's default, the kept one and those near the best."""
    passes = len(plans[0]["blocks"])
    return [plan for plan in plans if len(plan["blocks"]) == passes]


def gains_apart(tuning: Mapping[str, Any], plans: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return how far the gain of each swept plan over the default was predicted from what was measured: shares."""
    predicted = {each["call"]: each["predicted_gain"] for each in tuning["rounds"][0]["plans"]}
    default_s, found = usual(plans[0]), []
    for plan in plans[1:]:
        gain = next((each for call, each in predicted.items() if same(plan["caps"], call)), None)
        if gain is not None:
            found.append(abs(gain - (1 - usual(plan) / default_s)))
    return found


def cost_of(found: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return what a decided tuner adds to a step by turns, its standard error, and what its call takes: shares."""
    without, others = ([second for block in found[arm] for second in block] for arm in ("without", "with"))
    _, tuned = compare([without, others])
    low = compare([without, others], 0.5 + math.erf(1 / math.sqrt(2)) / 2)[1]
    base_s = tuned.step_s + tuned.saved_s
    return -tuned.saved_s / base_s, (low.saved_s - low.saved_low_s) / base_s, median(found["calls"]) / base_s


def blind(caps: Sequence[Mapping[str, Any]], steps: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Search the single caps by a Gaussian process with expected improvement; return its best step and what it lost.

    A trial is taken to measure the plan's step exactly, which favours the search. What is lost is the share of its
    steps beyond as many of torch's default.
    """
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern, WhiteKernel

    known = [(math.log(c["bucket_cap_mb"]), s) for c, s in zip(caps, steps, strict=True) if "bucket_cap_mb" in c]
    places, values = (np.array(column) for column in zip(*known, strict=True))
    draws = np.random.default_rng(seed)
    tried = [int(draws.integers(len(places)))]
    while len(tried) < TRIALS:
        model = GaussianProcessRegressor(Matern(nu=2.5) + WhiteKernel(1e-3), normalize_y=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(places[tried, None], values[tried])
            mean, error = model.predict(places[:, None], return_std=True)
        gap = values[tried].min() - mean
        ratio = gap / np.maximum(error, 1e-12)
        density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
        below = np.array([0.5 * (1 + math.erf(each / math.sqrt(2))) for each in ratio])
        tried.append(int(np.argmax(gap * below + error * density)))
    taken = values[tried]
    return float(taken.min()), float(taken.mean() / steps[0] - 1)
