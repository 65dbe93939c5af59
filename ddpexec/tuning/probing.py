"""Plans that are run for a few steps to see messages of other sizes, where those of the present plan are all alike."""

from __future__ import annotations

from collections.abc import Sequence

from ddpexec.tuning.observed import ObservedJob, RankSteps
from ddpexec.tuning.plan import TrialPlan
from ddpexec.tuning.wires import APART, wire_of
from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.common.units import MIB

_SMALLER, _LARGER = 0.45, 2.2
"""Caps of the two probing plans over the largest message of the present one: just as far from it as it takes to tell
bytes from latency (`APART`), since a plan far from the present one is far from the best as often."""


def probes(job: ObservedJob, ranks: Sequence[RankSteps]) -> list[TrialPlan]:
    """Return the plans to probe with, at most two; none where the present one tells bytes from latency."""
    wire = wire_of([ranks])
    if wire is None or wire.apart:
        return []
    order = [index for group in ranks[0].groups for index in group]
    sizes = [size for size, _ in wire.seen]
    found: list[TrialPlan] = []
    for share in (_SMALLER, _LARGER):
        caps = BucketCaps(bucket_cap_mb=share * sizes[-1] / MIB)
        plan = rebuilt_plan(job.parameters, caps, order)
        made = [bucket.size_bytes for bucket in plan.buckets]
        if max(*made, *sizes) >= APART * min(*made, *sizes):
            found.append(TrialPlan(caps, tuple(tuple(group) for group in plan.groups())))
    return found
