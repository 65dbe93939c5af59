"""The `bucket_cap_mb_list` that makes stock torch build given buckets, in numbers that people can read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ddpsim.bucketing.assign import Parameter, assign_buckets
from ddpsim.common.units import MIB, mib_to_bytes

_STEPS_MB = [step * 10**power for power in (2, 1, 0) for step in (5, 1)] + [
    step / 10**power for power in range(1, 7) for step in (5, 1)
]
"""From the roundest to bytes: caps are multiples of the first that will do."""

_SMALL_MB = 0.01
"""A cap below this is written as 0 where that does the same: a bucket for each gradient."""

Range = tuple[int, float]
"""Limits in bytes that close a bucket where it ends: above the first, up to the second."""


def torch_caps(parameters: Sequence[Parameter], groups: Sequence[Sequence[int]]) -> tuple[float, ...] | None:
    """Return the shortest list of the roundest caps, in MiB, with which torch builds `groups` in their own order.

    Args:
        parameters: in registration order.
        groups: registration indices in launch order, each once.

    Returns:
        As `bucket_cap_mb_list`; None where no list does.
    """
    order = [index for group in groups for index in group]
    wanted = [tuple(group) for group in groups]

    def gives(limits: Sequence[int]) -> bool:
        return [bucket.parameters for bucket in assign_buckets(parameters, limits, order)] == wanted

    # Sizes of the buckets as limits give them exactly, if any limits do: torch's assignment itself is the judge. From
    # these each limit is moved to the roundest number of its range; ranges that look right one by one may not
    # together, where several types read one list of caps, so that the round list is judged again.
    limits = next((limits for limits in _list_exact_limits(parameters, groups) if gives(limits)), None)
    if limits is None:
        return None
    round_caps = tuple(map(find_round_cap, _merge_ranges(_ranges(parameters, groups, limits))))
    if all(cap is not None for cap in round_caps):
        caps = tuple(cap for cap in round_caps if cap is not None)
        if gives([mib_to_bytes(cap) for cap in caps]):
            return caps
    return tuple(limit / MIB for limit in limits)


def find_round_cap(limits: Range) -> float | None:
    """Return the roundest cap in MiB whose bytes lie in `limits`; None where none is round.

    Of equally round ones the largest; of a range without an end the smallest, and none beyond twice its beginning.

    >>> [find_round_cap(each) for each in ((24 << 20, 26 << 20), (954 << 20, math.inf), (-1, 4 << 20), (-1, 64))]
    [25, 1000, 4, 0]
    """
    above, up_to = limits
    if above < 0 and up_to < _SMALL_MB * MIB:
        return 0
    for step in _STEPS_MB:
        if math.isinf(up_to):
            cap = _plain((math.floor((above + 1) / MIB / step) + 1) * step)
        else:
            cap = _plain(math.floor(up_to / MIB / step + 1e-12) * step)
        if cap > 0 and above < mib_to_bytes(cap) <= (max(2 * above, MIB) if math.isinf(up_to) else up_to):
            return cap
    return None


def _ranges(parameters: Sequence[Parameter], groups: Sequence[Sequence[int]], limits: Sequence[int]) -> list[Range]:
    """Return, for each of `limits`, the range in which every bucket it applies to ends where it does."""
    ranges: list[Range] = [(-1, math.inf)] * len(limits)
    dense = [group for group in groups if not parameters[group[0]].sparse]
    keys = [(parameters[group[0]].dtype, parameters[group[0]].device) for group in dense]
    last, seen = {key: number for number, key in enumerate(keys)}, Counter[tuple[str, str]]()
    for number, (group, key) in enumerate(zip(dense, keys, strict=True)):
        cursor = min(seen[key], len(limits) - 1)
        seen[key] += 1
        size = sum(parameters[index].size_bytes for index in group)
        this: Range = (size - parameters[group[-1]].size_bytes if len(group) > 1 else -1, size)
        if number == last[key] and len(last) == 1:
            this = (this[0], math.inf)  # whether it closes there or is left over, it is the same bucket
        elif number == last[key] and size < limits[cursor]:
            this = (size, math.inf)  # left over, and so launched after those of other kinds that close
        ranges[cursor] = _intersect(ranges[cursor], this)
    return ranges


def _merge_ranges(ranges: Sequence[Range]) -> list[Range]:
    """Return `ranges` without those at the end that one cap can serve; the last cap repeats."""
    merged = list(ranges)
    while len(merged) > 1:
        common = _intersect(merged[-2], merged[-1])
        if common[0] >= common[1]:
            break
        merged[-2:] = [common]
    return merged


def _intersect(one: Range, other: Range) -> Range:
    return max(one[0], other[0]), min(one[1], other[1])


def _plain(cap: float) -> float:
    whole = round(cap, 6)
    return int(whole) if whole == int(whole) else whole


def _list_exact_limits(parameters: Sequence[Parameter], groups: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield lists of limits that may close the groups where they end; each (dtype, device) reads its own from it."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for group in groups:
        first = parameters[group[0]]
        if not first.sparse:
            sizes.setdefault((first.dtype, first.device), []).append(sum(parameters[i].size_bytes for i in group))
    closed = _column_minima(list(sizes.values()))
    yield (
        _drop_repeated_end(closed[:-1]) if len(closed) > 1 and closed[-1] <= closed[-2] else _drop_repeated_end(closed)
    )
    yield _drop_repeated_end(closed)
    yield _drop_repeated_end(_column_minima([of_key[:-1] for of_key in sizes.values()]))  # the last of each left over


def _column_minima(rows: Sequence[Sequence[int]]) -> list[int]:
    return [min(size for size in column if size is not None) for column in zip_longest(*rows)]


def _drop_repeated_end(limits: list[int]) -> list[int]:
    while len(limits) > 1 and limits[-1] == limits[-2]:
        limits = limits[:-1]
    return limits or [0]
