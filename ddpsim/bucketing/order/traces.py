"""How well the buckets of a run fitted the order in which its gradients arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ddpsim.bucketing.order.agreement import plan_tau
from ddpsim.bucketing.order.arrivals import arrivals_in
from ddpsim.trace.records import BucketTimes, Trace


@dataclass(frozen=True, slots=True)
class PlanFit:
    """Says how well a plan fits one backward of one rank.

    Attributes:
        rank, iteration: of the backward.
        tau: Kendall's tau of plan and arrivals over pairs in different buckets.
        held_back_s: the longest that a complete bucket waited for one before it to become complete, in seconds.
    """

    rank: int
    iteration: int
    tau: float
    held_back_s: float


def plan_fits(trace: Trace) -> list[PlanFit]:
    """Return how the buckets in force fitted the arrivals, for each synced iteration with buckets and gradients."""
    return [
        PlanFit(
            it.rank,
            it.index,
            plan_tau([b.parameters for b in it.buckets], arrivals_in(it).order),
            held_back_s(it.buckets),
        )
        for it in trace.iterations
        if it.synced and it.gradients and it.buckets
    ]


def held_back_s(buckets: Sequence[BucketTimes]) -> float:
    """Return the longest time between a bucket's last gradient and that of the latest bucket before it, in seconds."""
    return longest_wait([bucket.ready_s for bucket in sorted(buckets, key=lambda bucket: bucket.index)])


def held_back_by(groups: Sequence[Sequence[int]], ready_s: Mapping[int, float]) -> float:
    """Return the longest time that a bucket of `groups`, being complete, waited for one before it, in seconds.

    Args:
        groups: registration indices of each bucket, in launch order.
        ready_s: when each gradient came; those that are absent were announced with the first that did.
    """
    first = min(ready_s.values(), default=0.0)
    return longest_wait([max((ready_s.get(index, first) for index in group), default=first) for group in groups])


def longest_wait(ready_s: Sequence[float]) -> float:
    """Return the longest time between one moment and the latest of those before it, 0 where they ascend."""
    latest, longest = float("-inf"), 0.0
    for moment in ready_s:
        longest = max(longest, latest - moment)
        latest = max(latest, moment)
    return longest


def fit_document(fits: Sequence[PlanFit]) -> dict[str, object] | None:
    """Return means and worst cases as a JSON object; None without any."""
    if not fits:
        return None
    loosest, longest = min(fits, key=lambda fit: fit.tau), max(fits, key=lambda fit: fit.held_back_s)
    return {
        "kendall_tau": fmean(fit.tau for fit in fits),
        "kendall_tau_worst": {"tau": loosest.tau, "rank": loosest.rank, "iteration": loosest.iteration},
        "held_back_s": fmean(fit.held_back_s for fit in fits),
        "held_back_worst": {
            "held_back_s": longest.held_back_s,
            "rank": longest.rank,
            "iteration": longest.iteration,
        },
    }
