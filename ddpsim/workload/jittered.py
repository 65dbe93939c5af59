"""An estimate whose iterations differ, as no roofline tells them to: one iteration drawn out into many."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from ddpsim.errors import WorkloadError
from ddpsim.workload.profile import Phase, Seconds, Workload

ITERATIONS = 64
"""That are made; chosen by hand: the last of them is 2.4 standard deviations slow, and a file stays small."""
SOURCE = (
    "given; GPUs of one model differ by 8 % in the mean and 22 % at most on five clusters (Sinha et al., "
    "'Not All GPUs Are Created Equal', SC 2022, arXiv 2208.11035)"
)


def quantiles(count: int) -> list[float]:
    """Return so many normal quantiles, ascending, each in the middle of a share of 1 / `count`."""
    return [NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]


def jitter_of(workload: Workload) -> float:
    """Return the standard deviation of what the iterations of `workload` are `quantiles` of; 0 of recorded ones."""
    told = workload.provenance.get("jitter")
    std = told.get("std") if isinstance(told, Mapping) else None
    return float(std) if isinstance(std, int | float) and math.isfinite(std) and workload.iterations > 1 else 0.0


def jittered(workload: Workload, jitter: float, seed: int = 0) -> Workload:
    """Return `workload` with iterations whose device times are its own times lognormal factors of median 1.

    The factors are the distribution's quantiles in an order that is drawn, so that no file lacks its tail. The host
    launches kernels at its own pace, which jitter of a device leaves alone; on one clock all times vary. Ranks of a
    prediction draw among the iterations, and the simulation adds what so few of them lack of the tail (`jitter_of`).

    Args:
        workload: of one iteration, as estimates are.
        jitter: standard deviation of the factors' logarithm.
        seed: of the draw; the same one gives the same workload.

    Raises:
        WorkloadError: a workload that has iterations of its own.
    """
    if jitter == 0:
        return workload
    if workload.iterations > 1:
        what = f"has {workload.iterations} iterations of its own, which differ already"
        raise WorkloadError(what, place="jitter", remedy="leave it out, or give it to predict")
    factors = np.exp(jitter * np.random.default_rng(seed).permutation(quantiles(ITERATIONS)))
    host = factors if workload.one_clock else np.ones(ITERATIONS)

    def phase(given: Phase) -> Phase:
        return Phase(host * given.host_s, factors * given.device_s)

    def rows(given: Seconds, by: Seconds) -> Seconds:
        return np.asarray(by[:, None] * given, dtype=np.float64)

    hooks = rows(workload.gradient_hook_s, host)
    return replace(
        workload,
        forward=phase(workload.forward),
        backward=phase(workload.backward),
        optimizer=phase(workload.optimizer),
        gradient_hook_s=hooks,
        gradient_ready_s=np.maximum(rows(workload.gradient_ready_s, factors), hooks),
        provenance={**workload.provenance, "jitter": {"std": jitter, "seed": seed, "source": SOURCE}},
    )
