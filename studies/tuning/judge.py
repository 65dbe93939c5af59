"""The choice of the tuner held against an exhaustive sweep, and against a search that knows no model."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

TRIALS, TRIAL_STEPS = 20, 10
"""Plans that the blind search tries, and steps of each (Horovod's autotune: HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE)."""


def usual(plan: Mapping[str, Any]) -> float:
    """Return a plan's step: the mean of its steps without the longest and the shortest fifth."""
    steps = sorted(second for block in plan["blocks"] for second in block)
    cut = len(steps) // 5
    return fmean(steps[cut : len(steps) - cut])


def same(caps: Mapping[str, Any], call: str) -> bool:
    """Whether a line is the call with these caps."""
    arguments = "".join(f", {name}={value}" for name, value in caps.items())
    return call == f"DistributedDataParallel(model{arguments})"


def judged(tuning: Mapping[str, Any], plans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one configuration's row: steps in seconds, over the best of the sweep and over torch's default."""
    only = tuning["rounds"][0]
    steps = [usual(plan) for plan in plans]
    best, default = min(steps), steps[0]
    kept = next((s for s, plan in zip(steps, plans, strict=True) if same(plan["caps"], only["kept"])), None)
    found, lost = blind([plan["caps"] for plan in plans], steps)
    return {
        "kept": only["kept"],
        "best_s": best,
        "default_s": default,
        "kept_s": kept,
        "over_best": None if kept is None else kept / best,
        "over_default": None if kept is None else kept / default,
        "steps": only["steps"],
        "lost": only["lost_s"] / (only["steps"] * only["present_step_s"]),
        "blind_over_best": found / best,
        "blind_steps": TRIALS * TRIAL_STEPS,
        "blind_lost": lost,
    }


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
