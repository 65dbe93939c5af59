"""Which of torch's bucket caps give the traced buckets: the one that the job had where known, else all that fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ddpsim.bucketing import BucketCaps, BucketPlan, initial_plan, plan_buckets
from ddpsim.bucketing.plan import custom_plan
from ddpsim.common.units import MIB
from ddpsim.explaining.basis import PredictionBasis

Range = tuple[int, float]
"""Caps in bytes that give the same buckets: above the first, up to the second."""
Make = Callable[[BucketCaps], BucketPlan]


def sets_of(plan: BucketPlan) -> list[set[int]]:
    """Return each bucket's registration indices, in launch order."""
    return [set(group) for group in plan.groups()]


def is_whole(basis: PredictionBasis) -> bool:
    """Whether the traced buckets hold every parameter once."""
    bucketed = sorted(index for group in basis.groups for index in group)
    return bucketed == list(range(len(basis.parameters)))


def bucket_origin(basis: PredictionBasis) -> str:
    """Return in words which call of torch gives the traced buckets.

    A trace of `torch.profiler` does not record the cap of the job: the answer is the range of caps that give its
    buckets, in the order of arrival or, before DDP has rebuilt them, in registration order.
    """
    groups = [set(group) for group in basis.groups]
    if not groups:
        return "no bucket of DDP in the trace"
    if not is_whole(basis):
        return "the traced buckets leave parameters out: unused ones, or another model"
    parameters, order = basis.parameters, list(basis.order)
    position = {index: number for number, index in enumerate(order)}
    cases: Sequence[tuple[str, Make, Callable[[int], int]]] = (
        (
            "as torch rebuilds it in the order of arrival",
            lambda caps: plan_buckets(parameters, caps, "rebuilt", order),
            lambda index: position[index],
        ),
        (
            "as of torch's first iteration: not rebuilt in the order of arrival",
            lambda caps: initial_plan(parameters, caps),
            lambda index: index,
        ),
    )
    for how, make, place in cases:
        if words := _caps_of(basis, groups, make, place):
            return f"{words}, {how}"
    call = custom_plan(parameters, basis.groups)
    return f"of no one cap: {call.torch}"


def _caps_of(basis: PredictionBasis, groups: list[set[int]], make: Make, place: Callable[[int], int]) -> str:
    """Return the caps that give `groups`, in words; empty where neither torch's default nor one cap does.

    Args:
        basis: of the trace.
        groups: the traced buckets.
        make: returns torch's plan of caps.
        place: the position of a parameter in the order in which torch fills buckets.
    """

    def same(caps: BucketCaps) -> bool:
        return sets_of(make(caps)) == groups

    if basis.caps is not None and same(basis.caps):
        arguments = basis.caps.torch_arguments()
        call = ", ".join(f"{name}={value}" for name, value in arguments.items()) or "torch's default, [1, 25] MiB"
        return f"{call}, with which the job was run"
    # torch closes a bucket at the first gradient that brings it to its cap: the cap is above the bucket without its
    # last gradient, and at most the whole of it.
    sizes = [each.size_bytes for each in basis.parameters]
    totals = [sum(sizes[index] for index in group) for group in groups]
    limits = [(total - sizes[max(group, key=place)], total) for total, group in zip(totals, groups, strict=True)]
    common, first, others = _join_ranges(limits), limits[0], _join_ranges(limits[1:])
    uniform = ""
    if common is not None:
        # The limits are necessary, not sufficient (dtypes and devices split buckets too): both ends are tried.
        lowest, highest = common[0] + 1, 2 * (common[0] + 1) if math.isinf(common[1]) else common[1]
        uniform = _range(common) if all(same(BucketCaps(bucket_cap_mb=cap / MIB)) for cap in (lowest, highest)) else ""
    if not same(BucketCaps()):
        return f"bucket_cap_mb {uniform}" if uniform else ""
    words = "torch's default, [1, 25] MiB"
    if uniform:
        return f"{words}, or bucket_cap_mb {uniform}"
    if others is None or len(groups) < 2:
        return words
    return f"{words}, or bucket_cap_mb_list with its first cap {_range(first)} and its others {_range(others)}"


def _join_ranges(each: Sequence[Range]) -> Range | None:
    """Return the caps that all buckets allow; None where there are none.

    The last bucket may be what was left over at the end, below any cap, and then has no upper limit.
    """
    if not each:
        return None
    above = max(low for low, _ in each)
    for buckets in (each[:-1], each):
        up_to = min((high for _, high in buckets), default=math.inf)
        if above < up_to:
            return above, up_to
    return None


def _range(limits: Range) -> str:
    above, up_to = limits
    low = "from 0" if above == 0 else f"above {above / MIB:.4g}"
    joint = " " if above == 0 else " and "
    return f"{low} MiB" if math.isinf(up_to) else f"{low}{joint}up to {up_to / MIB:.4g} MiB"
