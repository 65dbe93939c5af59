"""How much of communication is hidden under computation, and the stretches of time that this is counted on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddpsim.trace.records import Span, Trace

Interval = tuple[float, float]
"""Start and end in seconds."""


def overlap_ratio(trace: Trace, rank: int) -> float | None:
    """Return the share of `rank`'s communication time during which it also computed.

    From kernel spans where the trace has them (every kernel that is no collective is computation), else, and where
    forward was held up, from the iterations' exposed time against the union of their buckets' collectives.
    """
    if trace.world_size == 1:
        return None
    iterations = trace.of_rank(rank)
    held_up = any(it.held_up_s > 0 for it in iterations)
    kernels = [] if held_up else [span for span in trace.spans if span.rank == rank and span.kernel]
    communication = union((span.start_s, span.end_s) for span in kernels if is_collective(span))
    if communication:
        computation = union((span.start_s, span.end_s) for span in kernels if not is_collective(span))
        total = length(communication)
        return intersection(communication, computation) / total if total > 0 else None
    total = sum(length(union((b.started_s, b.finished_s) for b in it.buckets)) for it in iterations)
    exposed = sum(it.exposed_comm_s for it in iterations)
    return max(0.0, 1 - exposed / total) if total > 0 else None


def is_collective(span: Span) -> bool:
    """Return whether `span` is a collective's."""
    return span.name.startswith("nccl")


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return disjoint intervals that cover the same instants, ascending."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Sequence[Interval]) -> float:
    """Return the summed length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def intersection(one: Sequence[Interval], other: Sequence[Interval]) -> float:
    """Return the length of what two lists of disjoint ascending intervals share."""
    shared, i, j = 0.0, 0, 0
    while i < len(one) and j < len(other):
        shared += max(0.0, min(one[i][1], other[j][1]) - max(one[i][0], other[j][0]))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return shared


def without(one: Sequence[Interval], other: Sequence[Interval]) -> list[Interval]:
    """Return what of disjoint ascending intervals lies in none of others, which are disjoint and ascending too."""
    left: list[Interval] = []
    first = 0
    for start, end in one:
        while first < len(other) and other[first][1] <= start:
            first += 1
        at, begin = first, start
        while at < len(other) and other[at][0] < end:
            if other[at][0] > begin:
                left.append((begin, other[at][0]))
            begin = max(begin, other[at][1])
            at += 1
        if begin < end:
            left.append((begin, end))
    return left
