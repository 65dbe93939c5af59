"""Turn an observer's moments into the records and spans of a trace.

Start with `Records.iteration` (what an iteration took, phase by phase) and `Records.spans` (what people see of it).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from ddpexec.timing.clock import Clock, Moment
from ddpexec.timing.observe import BucketNote, Note, Pair
from ddpsim.trace.records import (
    BACKWARD,
    BROADCAST,
    COLLECTIVES,
    COMPUTE,
    FORWARD,
    HOST,
    INPUT,
    OPTIMIZER,
    WAIT,
    BucketTimes,
    Gradient,
    Iteration,
    Span,
    communication_stream,
)

Args = Mapping[str, object]

IN_FLIGHT = {"gloo": 2, "nccl": 1, "mpi": 1}
"""Collectives that one process group keeps in flight; the next in its queue begins when one of them ends."""


class Records:
    """Turns notes into records of `rank`.

    Args:
        rank: of this process.
        clock: the one that took the moments.
        backend, groups: decide how many collectives are in flight, and so when a queued one began.
        offset_s: to add to this machine's clock to get rank 0's.
    """

    def __init__(self, rank: int, clock: Clock, backend: str, *, groups: int = 1, offset_s: float = 0.0) -> None:
        self._rank, self._clock, self._offset_s = rank, clock, offset_s
        self._lanes, self._groups = IN_FLIGHT.get(backend, 1), groups

    def iteration(self, note: Note, index: int) -> Iteration:
        """Return the record of a closed iteration.

        `backward_compute_s` is backward without hooks (copies and launches), without waits between gradients, and
        without its end, in which buckets are waited for and written back; `exposed_comm_s` is the waiting, of a
        schedule wherever it waits, forward and the optimizer's step included, which do not count it; on a GPU all are
        times of the device's stream.
        """
        buckets, exposed = self._buckets(note)
        updates = sum(self._length(pair) for pair in note.updates)
        # Updates and waits that a schedule makes inside forward or the optimizer's step are taken off those phases and
        # count as themselves.
        in_forward = updates
        in_forward += sum(self._length(pair) for pair in note.waits or () if self._is_within(pair, note.module))
        in_step = sum(self._length(pair) for pair in note.waits or () if self._is_within(pair, note.optimizer))
        inside = sum(self._length(pair) for pair in note.hooks.values())
        backward = self._length(note.backward) - inside - self._length(note.finish)
        # Waits inside hooks, or inside the end of backward, have gone with those: each stretch of time is taken off
        # once.
        backward -= sum(self._length(pair) for pair in self._find_waits(note))
        loss = self._length((note.returned, note.backward[0])) if note.returned and note.backward else 0.0
        return Iteration(
            rank=self._rank,
            index=index,
            start_s=self._convert_moment(note.start),
            end_s=self._convert_moment(note.end),
            forward_s=max(0.0, self._length(note.module) - in_forward) + loss,
            backward_compute_s=max(0.0, backward),
            exposed_comm_s=exposed,
            buffer_broadcast_s=self._length(note.buffers),
            optimizer_s=self._length(note.optimizer) + updates - in_step,
            input_s=self._input_s(note),
            synced=note.synced,
            stepped=note.stepped,
            buckets=buckets,
            gradients=tuple(
                Gradient(parameter=parameter, hook_s=self._host(begin), ready_s=self._convert_moment(begin))
                for parameter, (begin, _) in sorted(note.hooks.items(), key=lambda item: self._host(item[1][0]))
            ),
        )

    def buckets(self, note: Note) -> tuple[BucketTimes, ...]:
        """Return the buckets of a closed iteration alone."""
        return self._buckets(note)[0]

    def spans(self, note: Note, iteration: Iteration) -> list[Span]:
        """Return what people see of an iteration: phases on the host and the computing stream, collectives beside.

        A phase that waits for messages computes in between: its parts are spans of their own on the computing stream.
        """
        finish = self._convert_moment(note.finish[0]) if note.finish else None
        spans = []
        for name, pair in ((FORWARD, note.module), (BACKWARD, note.backward), (OPTIMIZER, note.optimizer)):
            if pair is not None:
                begin, end = self._convert_pair(pair)
                spans.append(self._span(HOST, name, begin, end))
                busy = min(end, finish) if name == BACKWARD and finish is not None else end
                parts = self._split_phase(begin, busy, note.waits or ())
                spans += [self._span(COMPUTE, name, here, there, kernel=True) for here, there in parts]
        waits = [bucket.waited for bucket in note.buckets if bucket.waited is not None]
        spans += [self._span(HOST, BROADCAST, *self._convert_pair(pair)) for pair in (note.buffers,) if pair]
        spans += [self._span(HOST, INPUT, b + self._offset_s, e + self._offset_s) for b, e in note.inputs]
        for name, pairs in (
            (INPUT, [note.loaded] if note.loaded else []),
            (OPTIMIZER, note.updates),
            (WAIT, waits if note.waits is None else note.waits),
        ):
            spans += [self._span(HOST, name, *self._convert_pair(pair)) for pair in pairs]
        for bucket, lane in zip(iteration.buckets, self._lanes_of(iteration.buckets), strict=True):
            args = {"bucket": bucket.index, "size_bytes": bucket.size_bytes, "launched_s": bucket.launched_s}
            stream, end = communication_stream(lane), max(bucket.started_s, bucket.finished_s)
            spans.append(
                self._span(stream, COLLECTIVES[bucket.operation], bucket.started_s, end, kernel=True, args=args)
            )
        return spans

    def _split_phase(self, begin: float, end: float, waits: Sequence[Pair]) -> list[tuple[float, float]]:
        """Return the parts of a phase in which it computes: those outside the waits for messages that it holds."""
        parts, at = list[tuple[float, float]](), begin
        for pair in sorted(waits, key=lambda each: self._convert_moment(each[0])):
            here, there = (min(max(self._convert_moment(moment), begin), end) for moment in pair)
            if here > at:
                parts.append((at, here))
            at = max(at, there)
        return [*parts, (at, end)] if end > at or not parts else parts

    def _span(
        self, stream: str, name: str, begin: float, end: float, *, kernel: bool = False, args: Args | None = None
    ) -> Span:
        length, args = max(0.0, end - begin), args or {}
        return Span(
            rank=self._rank, stream=stream, name=name, start_s=begin, duration_s=length, kernel=kernel, args=args
        )

    def _input_s(self, note: Note) -> float | None:
        """Return how long a batch was waited for; None where no batch was seen."""
        if note.loaded is not None:
            return self._length(note.loaded)
        return sum(end - begin for begin, end in note.inputs) if note.inputs else None

    def _buckets(self, note: Note) -> tuple[tuple[BucketTimes, ...], float]:
        """Return the buckets, and how long this rank waited for them."""
        # Backends tell no start. It follows from launches, ends and how many collectives a group keeps in flight.
        waiting = note.finish if note.waits is None else None
        ends = [self._find_finished(bucket, waiting) for bucket in note.buckets]
        launches = [self._host(bucket.launched) for bucket in note.buckets]
        queued = [
            max(self._convert_moment(b.launched), launch) for b, launch in zip(note.buckets, launches, strict=True)
        ]
        started = collective_starts(queued, ends, self._lanes, self._groups)
        written, exposed = self._find_written(note, ends)
        return tuple(
            BucketTimes(
                index=bucket.number,
                size_bytes=bucket.size_bytes,
                parameters=bucket.indices,
                ready_s=self._find_ready(note, bucket, launch),
                launched_s=launch,
                started_s=min(start, end),
                wire_s=None,
                finished_s=end,
                written_s=max(end, usable),
                operation=bucket.operation,
            )
            for bucket, launch, start, end, usable in zip(note.buckets, launches, started, ends, written, strict=True)
        ), exposed

    def _find_ready(self, note: Note, bucket: BucketNote, launch: float) -> float:
        """Return when the last gradient of a bucket was there; its launch, where it carries none of this iteration."""
        indices = bucket.indices if bucket.operation.reduces else ()
        return max((self._convert_moment(note.hooks[i][0]) for i in indices if i in note.hooks), default=launch)

    def _find_written(self, note: Note, ends: Sequence[float]) -> tuple[list[float], float]:
        stamped = [bucket.written for bucket in note.buckets]
        if note.waits is not None:
            written = [
                end if moment is None else self._convert_moment(moment)
                for moment, end in zip(stamped, ends, strict=True)
            ]
            return written, sum(self._length(pair) for pair in note.waits)
        if None not in stamped:
            waits = [bucket.waited for bucket in note.buckets]
            return [self._convert_moment(moment) for moment in stamped], sum(self._length(pair) for pair in waits)
        if note.finish is None:
            return list(ends), 0.0
        begin, end = (self._convert_moment(moment) for moment in note.finish)
        return write_back(begin, end, ends, [bucket.size_bytes for bucket in note.buckets])

    def _find_finished(self, bucket: BucketNote, waiting: Pair | None) -> float:
        """Return the end of a bucket: its own stamp, but no later than the return of the wait for it, or for all.

        The backend wakes who waits before its own thread takes the stamp, which on a busy host can be long after.
        """
        stamps = [moment for moment in (bucket.finished(),) if moment is not None]
        stamps += [pair[1] for pair in (bucket.waited, waiting) if pair is not None]
        return min((self._convert_moment(moment) for moment in stamps), default=self._convert_moment(bucket.launched))

    def _lanes_of(self, buckets: Sequence[BucketTimes]) -> list[int]:
        """Return for each bucket the first communication stream that was free when it started."""
        ends: list[float] = []
        chosen = []
        for bucket in buckets:
            lane = next((lane for lane, end in enumerate(ends) if end <= bucket.started_s), len(ends))
            ends[lane : lane + 1] = [bucket.finished_s]
            chosen.append(lane)
        return chosen

    def _find_waits(self, note: Note) -> list[Pair]:
        """Return the waits of backward that neither its hooks nor its end hold."""
        held = [*note.hooks.values(), *([note.finish] if note.finish is not None else [])]
        waits = [pair for pair in note.waits or () if self._is_within(pair, note.backward)]
        return [pair for pair in waits if not any(self._is_within(pair, each) for each in held)]

    def _is_within(self, pair: Pair, phase: Pair | None) -> bool:
        if phase is None:
            return False
        begin, end = self._convert_pair(phase)
        return begin <= self._convert_moment(pair[0]) <= end

    def _convert_pair(self, pair: Pair) -> tuple[float, float]:
        return self._convert_moment(pair[0]), self._convert_moment(pair[1])

    def _convert_moment(self, moment: Moment) -> float:
        return self._clock.device_s(moment) + self._offset_s

    def _host(self, moment: Moment) -> float:
        return self._clock.host_s(moment) + self._offset_s

    def _length(self, pair: Pair | None) -> float:
        return 0.0 if pair is None else self._clock.device_s(pair[1]) - self._clock.device_s(pair[0])


def collective_starts(
    launched: Sequence[float], finished: Sequence[float], in_flight: int, groups: int = 1
) -> list[float]:
    """Return when each collective began, given when it was launched and finished, in launch order.

    Backends do not say. The i-th goes to group i modulo `groups`; a group takes its collectives from its queue in
    order, `in_flight` at a time, so one begins when it is launched or when a place comes free, whichever is later.

    >>> collective_starts([0.0, 1.0, 2.0], [10.0, 4.0, 12.0], in_flight=2)
    [0.0, 1.0, 4.0]
    """
    places: list[list[float]] = [[float("-inf")] * in_flight for _ in range(groups)]
    started = []
    for position, (launch, end) in enumerate(zip(launched, finished, strict=True)):
        group = places[position % groups]
        start = max(launch, heapq.heappop(group))
        heapq.heappush(group, end)
        started.append(start)
    return started


def write_back(begin: float, end: float, finished: Sequence[float], sizes: Sequence[int]) -> tuple[list[float], float]:
    """Return when each bucket was written back, and the time spent waiting, where only begin and end are known.

    Buckets are waited for and written back one after the other from `begin` on; writing takes time in proportion to
    size, and as much in all as makes the last one end at `end`.
    """
    total = max(1, sum(sizes))
    low, high = 0.0, max(0.0, end - begin)
    # Bisection of the seconds of copying: the more of them, the later the last bucket is written, and it must be at
    # `end`.
    for _ in range(50):
        copying = (low + high) / 2
        written, _ = _write_back(begin, finished, [copying * size / total for size in sizes])
        low, high = (copying, high) if written and written[-1] < end else (low, copying)
    return _write_back(begin, finished, [low * size / total for size in sizes])


def _write_back(begin: float, finished: Sequence[float], copies: Sequence[float]) -> tuple[list[float], float]:
    written, waited, now = [], 0.0, begin
    for end, copy in zip(finished, copies, strict=True):
        waited += max(0.0, end - now)
        now = max(now, end) + copy
        written.append(now)
    return written, waited
