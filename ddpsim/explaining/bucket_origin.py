"""What the traced buckets are among those that torch makes of the model."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.bucketing import BucketCaps, BucketPlan, initial_plan, plan_buckets
from ddpsim.bucketing.plan import custom_plan
from ddpsim.explaining.basis import Basis

_CAPS = (
    0.0, 1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 40, 48, 50, 64, 75, 80, 96, 100, 128, 200, 256, 400, 500, 512, 1000, 1024,
)  # fmt: skip
"""MiB that people write; a traced plan is looked for among what they give."""


def sets_of(plan: BucketPlan) -> list[set[int]]:
    """Return each bucket's registration indices, in launch order."""
    return [set(group) for group in plan.groups()]


def is_whole(basis: Basis) -> bool:
    """Whether the traced buckets hold every parameter once."""
    held = sorted(index for group in basis.groups for index in group)
    return held == list(range(len(basis.parameters)))


def bucket_origin(basis: Basis) -> str:
    """Return what the traced buckets are among those that torch makes of the model."""
    groups = [set(group) for group in basis.groups]
    if not groups:
        return "no bucket of DDP in the trace"
    if not is_whole(basis):
        return "the traced buckets leave parameters out: unused ones, or another model"

    def same(plan: BucketPlan) -> bool:
        return sets_of(plan) == groups

    order = list(basis.order)
    cases: Sequence[tuple[str, BucketCaps]] = [
        ("torch's default, [1, 25] MiB", BucketCaps()),
        *((f"bucket_cap_mb={cap:g}", BucketCaps(bucket_cap_mb=cap)) for cap in _CAPS),
    ]
    for said, caps in cases:
        if same(plan_buckets(basis.parameters, caps, "rebuilt", order)):
            return f"{said}, as torch rebuilds it in the order of arrival"
    for said, caps in cases:
        if same(initial_plan(basis.parameters, caps)):
            return f"{said}, as of torch's first iteration: not rebuilt in the order of arrival"
    call = custom_plan(basis.parameters, basis.groups)
    return f"none of the usual caps: {call.torch}"
