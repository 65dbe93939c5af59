"""What the traced buckets are among those that torch makes of the model: the cap the job had, else those that fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ddpsim.bucketing import BucketCaps, BucketPlan, initial_plan, plan_buckets
from ddpsim.bucketing.plan import custom_plan
from ddpsim.common.units import MIB
from ddpsim.explaining.basis import PredictionBasis

Range = tuple[int, float]
"""Limits in bytes that give the same buckets: above the first, up to the second."""
Make = Callable[[BucketCaps], BucketPlan]


def sets_of(plan: BucketPlan) -> list[set[int]]:
    """Return each bucket's registration indices, in launch order."""
    return [set(group) for group in plan.groups()]


def is_whole(basis: PredictionBasis) -> bool:
    """Whether the traced buckets hold every parameter once."""
    held = sorted(index for group in basis.groups for index in group)
    return held == list(range(len(basis.parameters)))


def bucket_origin(basis: PredictionBasis) -> str:
    """Return what the traced buckets are among those that torch makes of the model.

    A trace of `torch.profiler` does not say with which cap the job was run: all caps that give its buckets are told.
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
        if said := _caps_of(basis, groups, make, place):
            return f"{said}, {how}"
    call = custom_plan(parameters, basis.groups)
    return f"of no one cap: {call.torch}"


def _caps_of(basis: PredictionBasis, groups: list[set[int]], make: Make, place: Callable[[int], int]) -> str:
    """Return the caps that give `groups`, in words; empty where neither torch's default nor one cap does.

    Args:
        basis: of the trace.
        groups: the traced buckets.
        make: the plan that torch makes of caps.
        place: where a parameter comes when torch fills buckets.
    """

    def same(caps: BucketCaps) -> bool:
        return sets_of(make(caps)) == groups

    if basis.caps is not None and same(basis.caps):
        arguments = basis.caps.torch_arguments()
        asked = ", ".join(f"{name}={value}" for name, value in arguments.items()) or "torch's default, [1, 25] MiB"
        return f"{asked}, with which the job was run"
    # The limits that close a bucket where it ends: it was not full before its last gradient.
    sizes = [each.size_bytes for each in basis.parameters]
    totals = [sum(sizes[index] for index in group) for group in groups]
    every = [(total - sizes[max(group, key=place)], total) for total, group in zip(totals, groups, strict=True)]
    one, first, others = _join_ranges(every), every[0], _join_ranges(every[1:])
    uniform = ""
    if one is not None:
        # Caps at both ends of the limits must give the buckets.
        lowest, highest = one[0] + 1, 2 * (one[0] + 1) if math.isinf(one[1]) else one[1]
        uniform = _range(one) if all(same(BucketCaps(bucket_cap_mb=cap / MIB)) for cap in (lowest, highest)) else ""
    if not same(BucketCaps()):
        return f"bucket_cap_mb {uniform}" if uniform else ""
    said = "torch's default, [1, 25] MiB"
    if uniform:
        return f"{said}, or bucket_cap_mb {uniform}"
    if others is None or len(groups) < 2:
        return said
    return f"{said}, or bucket_cap_mb_list with its first cap {_range(first)} and its others {_range(others)}"


def _join_ranges(each: Sequence[Range]) -> Range | None:
    """Return the limits that close all buckets, of which what is left over at the end may be the last."""
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
