"""The numbers of a trace: period and its breakdown, bucket times, skew, overlap.

The same for simulated and measured traces, so that a prediction and a run are compared on equal terms.

Start at `summarise`; above it are intervals and parts, which explaining uses too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any, TypeVar

from ddpsim.common.errors import TraceError
from ddpsim.trace.cycles import cycles, follows_schedule, leaves_layers_out, period_steps
from ddpsim.trace.records import BUCKET, BucketTimes, CollectiveTimes, Iteration, Span, Trace

Collective = TypeVar("Collective", bound=CollectiveTimes)
Interval = tuple[float, float]
"""Start and end in seconds."""


def overlap_ratio(trace: Trace, rank: int) -> float | None:
    """Return the share of `rank`'s communication time during which it also computed.

    From kernel spans where the trace has them (every kernel that is no collective is computation), else, and where
    forward was held up or layers waited for messages of their own, from the iterations' exposed time against the union
    of their buckets' collectives.
    """
    if trace.world_size == 1:
        return None
    iterations = trace.of_rank(rank)
    held_up = any(it.held_up_s > 0 or it.others for it in iterations)
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


PARTS = ("forward_s", "backward_compute_s", "exposed_comm_s", "buffer_broadcast_s", "ddp_overhead_s", "optimizer_s")
"""The breakdown of `iteration_s`; its members sum to it."""

INPUT = "input_s"
"""The seventh part, of iterations that wait for their batches."""

LAYERS = "layer_comm_s"
"""The eighth part, of iterations whose layers wait for messages of their own."""

OF_BUCKET = (*BUCKET, "skew_s")
"""Fields of `BucketSummary` that documents have."""

OVER_ITERATIONS = ("iterations", "iteration_low_s", "iteration_high_s")
"""Fields of `Summary` that tell how its iterations differ."""

STATISTICS = ("median", "mean", "median of cycle means")
"""What one period stands for many. Iterations that leave layers out differ by design, so that their median may be
either of two values; those of a cycle of accumulated gradients do too, and a cycle's mean is one period."""


def seconds_by_part(it: Iteration) -> dict[str, float]:
    """Return the parts of an iteration as a profiler's trace has them, by name: with those of its `waits_s`."""
    parts = {part: getattr(it, part) for part in PARTS}
    return {**parts, INPUT: it.input_s or 0.0, **it.waits_s}


def complete_parts(parts: Mapping[str, float], step_s: float) -> dict[str, float]:
    """Return parts that are not negative and sum to the step: what they are short of it is DDP's overhead.

    Stamps of two clocks may overlap a little, and what is counted twice is taken off the largest part.
    """
    complete = {part: max(0.0, seconds) for part, seconds in parts.items() if part != "ddp_overhead_s"}
    left_s = step_s - sum(complete.values())
    complete["ddp_overhead_s"] = max(0.0, left_s)
    while left_s < 0:
        largest = max(complete, key=lambda part: complete[part])
        taken_s = min(complete[largest], -left_s)
        complete[largest] -= taken_s
        left_s = left_s + taken_s if taken_s > 0 else 0.0
    return complete


def part_fields(parts: Mapping[str, float]) -> dict[str, Any]:
    """Return parts, those of collectives that are not DDP's among them, as the fields of an `Iteration`."""
    named = {part: seconds for part, seconds in parts.items() if part in (*PARTS, INPUT) and part != "ddp_overhead_s"}
    waits_s = {part: seconds for part, seconds in parts.items() if part not in (*PARTS, INPUT)}
    return {**named, "overhead_s": parts["ddp_overhead_s"], "waits_s": waits_s}


def bound_wires(iterations: Sequence[Iteration]) -> list[Iteration]:
    """Return iterations of one rank with the most that each collective can have been on the wire, by `wire_s`.

    One rank cannot see when the last one came. The wire is taken to be as fast, in bytes a second, as in the fastest
    collective of the same operation, buckets apart; what one takes beyond that is waiting. Both are bounds: the true
    time on the wire is at most as long where one of the collectives met no wait.
    """
    rates: dict[tuple[str, bool], float] = {}
    for it in iterations:
        for each in it.collectives:
            if each.size_bytes and each.finished_s > each.started_s:
                kind = each.operation, bool(each.parameters)
                rates[kind] = max(rates.get(kind, 0.0), each.size_bytes / (each.finished_s - each.started_s))

    def bound(each: Collective) -> Collective:
        rate = rates.get((each.operation, bool(each.parameters)))
        if not (rate and each.size_bytes):
            return replace(each, wire_s=each.started_s)
        return replace(each, wire_s=max(each.started_s, each.finished_s - each.size_bytes / rate))

    return [
        replace(it, buckets=tuple(map(bound, it.buckets)), others=tuple(map(bound, it.others))) for it in iterations
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSummary(BucketTimes):
    """Holds one bucket's times on rank 0: medians over iterations, in seconds from the start of forward.

    `skew_s` is how long this rank's collective waited for the last one, also a median; it and `wire_s` are None where
    the trace cannot tell.
    """

    skew_s: float | None

    def document(self) -> dict[str, object]:
        """Return the bucket as JSON values."""
        return {**{name: getattr(self, name) for name in OF_BUCKET}, "parameters": list(self.parameters)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a trace says of the steady state.

    Attributes:
        iteration_s: period between starts of forward: `iteration_statistic` over iterations, maximum over ranks.
        iteration_statistic: one of `STATISTICS`: the mean where layers are left out.
        iteration_low_s, iteration_high_s: 10th and 90th percentile over iterations of that rank; never beyond
            `iteration_s`.
        forward_s ... optimizer_s: rank 0's breakdown, means over the middle half of its iterations by period (over all
            of them where `iteration_s` is the mean), scaled to sum to `iteration_s`.
        exposed_skew_s: of `exposed_comm_s`, what was waiting for the last rank to arrive; None where unknown, and of
            schedules beside DDP's.
        overlap_ratio: communication hidden under computation over all communication, as HolisticTraceAnalysis'
            comp_comm_overlap; None at one rank or without communication.
        iterations: periods that were counted.
        input_s: of the breakdown, how long forward waited for its batch; None where loading data is no part of it.
        layer_comm_s: of the breakdown, how long layers waited for messages of their own; None where they have none.
        waits_s: of the breakdown, as in `Iteration`; None where no trace of a profiler has any.
        buckets: in launch order; empty under a noop hook or at no synchronised iteration.
    """

    iteration_s: float
    iteration_statistic: str
    iteration_low_s: float
    iteration_high_s: float
    forward_s: float
    backward_compute_s: float
    exposed_comm_s: float
    buffer_broadcast_s: float
    ddp_overhead_s: float
    optimizer_s: float
    exposed_skew_s: float | None
    overlap_ratio: float | None
    world_size: int
    iterations: int
    buckets: tuple[BucketSummary, ...]
    input_s: float | None = None
    layer_comm_s: float | None = None
    waits_s: Mapping[str, float] | None = None

    def __repr__(self) -> str:
        took = f"{self.iteration_s * 1e3:.4g} ms an iteration"
        return f"<Summary: {took}, {self.world_size} ranks, {len(self.buckets)} buckets>"

    def document(self) -> dict[str, object]:
        """Return the summary as JSON values."""
        buckets = [bucket.document() for bucket in self.buckets]
        document = {**asdict(self), "buckets": buckets}
        for part in (INPUT, LAYERS, "waits_s"):
            if document[part] is None:
                del document[part]
        return document

    @property
    def parts(self) -> dict[str, float]:
        """The breakdown by its keys, which sum to `iteration_s`: `PARTS`, and those of the others that there are."""
        parts = {part: getattr(self, part) for part in (INPUT, *PARTS, LAYERS)}
        return {part: seconds for part, seconds in (parts | dict(self.waits_s or {})).items() if seconds is not None}


def summarise(trace: Trace) -> Summary:
    """Return the numbers of `trace`.

    Where gradients are accumulated a period is the mean over one cycle, from the first micro-batch to the one that the
    optimizer's step ends, so that steps saved count; else a period is one iteration. Where layers are left out the
    mean over all periods is taken, else the median.

    Raises:
        TraceError: where no rank, or not rank 0 (the lowest recorded rank stands in), left an iteration.
    """
    if not trace.iterations:
        raise TraceError("the trace holds no iteration", remedy="run at least one iteration after the warm-up")
    steps = period_steps(trace)
    periods = {rank: [_mean_period(cycle) for cycle in cycles(trace.of_rank(rank), steps)] for rank in trace.ranks}
    drops = leaves_layers_out(trace)
    centre = fmean if drops else median
    # Ranks that meet in collectives have one period but for the ends of a trace; where they do not meet, the slowest
    # is what the job waits for. The breakdown is rank 0's, so that it is of one rank and adds up.
    slowest = max(periods.values(), key=centre)
    first = trace.ranks[0]
    iteration_s = centre(slowest)
    groups = cycles(trace.of_rank(first), steps)
    # The middle half of the cycles by period; all iterations where the mean is taken.
    ordered, cut = sorted(groups, key=_mean_period), len(groups) // 4
    middle = trace.of_rank(first) if drops else [it for group in ordered[cut : len(ordered) - cut] for it in group]
    longer, (middle_one, mean, of_cycles) = steps > 1 or len(groups[0]) > 1, STATISTICS
    parts, scale = _breakdown(middle, iteration_s)
    arrived = arrivals(trace)
    skews = [] if follows_schedule(trace) else [s for it in middle if (s := exposed_skew_s(it, arrived)) is not None]
    return Summary(
        iteration_s=iteration_s,
        iteration_statistic=mean if drops else of_cycles if longer else middle_one,
        iteration_low_s=min(iteration_s, quantile(slowest, 0.1)),
        iteration_high_s=max(iteration_s, quantile(slowest, 0.9)),
        **parts,
        exposed_skew_s=fmean(skews) * scale if skews and len(skews) == len(middle) else None,
        overlap_ratio=overlap_ratio(trace, first),
        world_size=trace.world_size,
        iterations=len(slowest),
        buckets=_buckets(trace, first, arrived),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Return the `share` quantile of `values`, interpolated linearly between order statistics."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def _mean_period(cycle: Sequence[Iteration]) -> float:
    return fmean(it.iteration_s for it in cycle)


def _breakdown(middle: Sequence[Iteration], iteration_s: float) -> tuple[dict[str, Any], float]:
    """Return the parts, means over `middle`, scaled to sum to `iteration_s`, and by how much."""
    parts = {part: fmean(getattr(it, part) for it in middle) for part in PARTS}
    for part in (INPUT, LAYERS):
        if waits := [seconds for it in middle if (seconds := getattr(it, part)) is not None]:
            parts[part] = sum(waits) / len(middle)
    waiting = sorted({part for it in middle for part in it.waits_s})
    waits_s = {part: fmean(it.waits_s.get(part, 0.0) for it in middle) for part in waiting}
    total = sum((*parts.values(), *waits_s.values()))
    scale = iteration_s / total if total > 0 else 1.0
    scaled: dict[str, Any] = {part: seconds * scale for part, seconds in parts.items()}
    waits_s = {part: seconds * scale for part, seconds in waits_s.items()}
    if all(it.overhead_s is None for it in middle):
        scaled["ddp_overhead_s"] += iteration_s - sum((*scaled.values(), *waits_s.values()))
    return {**scaled, "waits_s": waits_s or None}, scale


def exposed_skew_s(iteration: Iteration, arrived: Mapping[tuple[int, int], float]) -> float | None:
    """Return how long a rank waited for a collective that was itself waiting for the last rank.

    Buckets are waited for in order, each from when the one before was written until it is finished; the waits end with
    the last bucket and are as long as the exposed communication together. Counted is what of each lies between the
    collective's start on this rank and the arrival of the last.

    Args:
        iteration: with its buckets in launch order.
        arrived: when the last rank's collective began, by iteration and bucket, for buckets whose `wire_s` is None.

    Returns:
        None where the arrival of the last rank is unknown.
    """
    left, skew = iteration.exposed_comm_s, 0.0
    earlier = (iteration.start_s, *(bucket.written_s for bucket in iteration.buckets[:-1]))
    for before_s, bucket in reversed(list(zip(earlier, iteration.buckets, strict=False))):
        wire = arrived.get((iteration.index, bucket.index)) if bucket.wire_s is None else bucket.wire_s
        if wire is None:
            return None
        begin = max(bucket.finished_s - left, before_s)
        skew += max(0.0, min(wire, bucket.finished_s) - max(begin, bucket.started_s))
        left = max(0.0, left - max(0.0, bucket.finished_s - begin))
    return skew


def _buckets(trace: Trace, rank: int, arrived: Mapping[tuple[int, int], float]) -> tuple[BucketSummary, ...]:
    synced = [it for it in trace.of_rank(rank) if it.synced and it.buckets]
    if not synced:
        return ()
    shape = _last_shape(synced)
    records: dict[int, list[tuple[Iteration, BucketTimes, float | None]]] = {index: [] for index in sorted(shape)}
    for it in synced:
        for bucket in it.buckets:
            if shape.get(bucket.index) == bucket.parameters:
                records[bucket.index].append((it, bucket, arrived.get((it.index, bucket.index))))
    return tuple(_bucket(times) for times in records.values())


def _last_shape(synced: Sequence[Iteration]) -> dict[int, tuple[int, ...]]:
    """Return the parameters of each bucket since the last rebuild; an iteration may leave buckets out."""
    shape: dict[int, tuple[int, ...]] = {}
    owner: dict[int, int] = {}
    for it in reversed(synced):
        here = {index: bucket.index for bucket in it.buckets for index in bucket.parameters}
        if any(owner.get(index, number) != number for index, number in here.items()):
            break
        owner |= here
        shape |= {bucket.index: bucket.parameters for bucket in it.buckets}
    return shape


def arrivals(trace: Trace) -> dict[tuple[int, int], float]:
    """Return when the last rank's collective began, by iteration and bucket, where every rank left a record."""
    if len(trace.ranks) < trace.world_size:
        return {}
    last: dict[tuple[int, int], float] = {}
    for it in trace.iterations:
        for bucket in it.buckets:
            key = (it.index, bucket.index)
            last[key] = max(last.get(key, bucket.started_s), bucket.started_s)
    return last


def _bucket(records: Sequence[tuple[Iteration, BucketTimes, float | None]]) -> BucketSummary:
    bucket = records[0][1]
    wires = [(it, b, arrival if b.wire_s is None else b.wire_s) for it, b, arrival in records]
    known = [(it, b, wire) for it, b, wire in wires if wire is not None]
    times = {
        name: median(getattr(b, name) - it.start_s for it, b, _ in records)
        for name in ("ready_s", "launched_s", "started_s", "finished_s", "written_s")
    }
    return BucketSummary(
        index=bucket.index,
        size_bytes=bucket.size_bytes,
        parameters=bucket.parameters,
        wire_s=median(wire - it.start_s for it, _, wire in known) if known else None,
        skew_s=median(max(0.0, wire - b.started_s) for _, b, wire in known) if known else None,
        operation=bucket.operation,
        **times,
    )
