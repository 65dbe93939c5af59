"""The iterations of a Kineto trace: parts, own work by phase, and all collectives with their stamps.

Read of the steps that `ddpsim.workload.kineto.steps` finds, of torch on GPUs or CPUs, under DDP or not.

Start at `IterationReader.read`, a step from beginning to end; `_device_parts` reads its parts off a device's clock,
`_host_parts` off the host's.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Table
from dataclasses import fields
from itertools import accumulate, pairwise
from statistics import median

from ddpsim.common.strict import parse_whole_number
from ddpsim.trace.metrics import Interval, bound_wires, complete_parts, intersection, part_fields, union, without
from ddpsim.trace.records import BucketTimes, CollectiveTimes, Iteration
from ddpsim.workload.kineto.collectives import DeviceCollectives, Sent
from ddpsim.workload.kineto.events import DeviceWork, busy_s
from ddpsim.workload.kineto.mapping import Mapping
from ddpsim.workload.kineto.replay import TimelineWithoutDdp
from ddpsim.workload.kineto.steps import HostStep, is_communication
from ddpsim.workload.kineto.workload import DissectedTrace, TraceFile

_SHARDED = "sharded"
_NANOSECONDS = 9
"""Decimals of a second in what is returned."""
_Exposed = Table[str, Sequence[Interval]]
"""By operation, disjoint ascending stretches of a step; those of two operations are disjoint too."""


class IterationReader:
    """Reads the iterations of one trace's steps, on the clock of its events.

    Args:
        file: the trace.
        alone: its time line without DDP.
        mapping: which parameter each gradient of a step is; None where that is not known.
    """

    def __init__(self, file: TraceFile, alone: TimelineWithoutDdp, mapping: Mapping | None) -> None:
        self._events, self._rank, self._alone, self._mapping = file.events, file.rank or 0, alone, mapping
        self._on_device = bool(file.events.works)
        self._works = sorted((w for w in file.events.works if w.launch is not None), key=_launch_s)
        self._launches = [_launch_s(work) for work in self._works]
        ends = [work.end_s if not is_communication(work) else 0.0 for work in self._works]
        self._latest = list(accumulate(ends, max))
        self._sent = DeviceCollectives(file.events)
        self._loop: list[tuple[str, float, float]] = []

    def read(self, step: HostStep, after: HostStep | None, ahead_s: float) -> Iteration:
        """Return a step; the last ends where the next forward would have begun, `ahead_s` behind its mark."""
        end_s = after.forward_s if after is not None else max(step.end_s + ahead_s, step.forward_s)
        sent = self._sent.list_in_step(step, end_s, self._select_between(step.forward_s, end_s))
        collectives = [self._collective(index, each, step) for index, each in enumerate(sent)]
        if self._on_device:
            # On a device the host does not wait for collectives: its work holds none of them, and the parts of the
            # step are read off the device's clock. Works belong to the phase in which the host launched them, whenever
            # they ran.
            host = _host_work(step, after, end_s, {}, _finished_s(step, ()))
            marks = (step.forward_s, step.backward_s, step.backward_end_s, end_s)
            device = {
                phase: busy_s(work for work in self._select_between(*span) if not is_communication(work))
                for phase, span in zip(("forward", "backward", "optimizer"), pairwise(marks), strict=True)
            }
            start_s, end_s, parts = self._device_parts(step, after, end_s, collectives)
        else:
            # Without a device the host waits in forward and backward for what blocks it, and that is cut out of its
            # work. Waits for `fully_shard`'s own gathers are the sharding's, so exposed communication and no part by
            # an operation's name.
            start_s, device, over_s = step.forward_s, {}, _finished_s(step, collectives)
            exposed = self._find_blocking(step, end_s, collectives)
            host = _host_work(step, after, end_s, exposed, over_s)
            named = {name: each for name, each in exposed.items() if name != _SHARDED}
            parts = _host_parts(step, end_s, host, named, collectives)
            if _SHARDED in exposed:
                waited_s = _blocked_s({_SHARDED: exposed[_SHARDED]}, step.forward_s, end_s)
                parts = complete_parts({**parts, "exposed_comm_s": waited_s}, end_s - start_s)
        match = re.search(r"([0-9]+)$", step.name)
        return Iteration(
            rank=self._rank,
            index=(parse_whole_number(match[1]) if match else None) or 0,
            start_s=start_s,
            end_s=end_s,
            **part_fields(parts),
            synced=bool(step.collectives),
            stepped=step.number + 1 == step.count,
            buckets=tuple(each for each in collectives if isinstance(each, BucketTimes)),
            others=tuple(each for each in collectives if not isinstance(each, BucketTimes)),
            host_s=host,
            device_s=device,
            whole=after is not None or ahead_s > 0,
        )

    def _select_between(self, start_s: float, end_s: float) -> Sequence[DeviceWork]:
        return self._works[bisect_left(self._launches, start_s) : bisect_left(self._launches, end_s)]

    def _find_blocking(
        self, step: HostStep, end_s: float, collectives: Sequence[CollectiveTimes]
    ) -> dict[str, list[Interval]]:
        """Return what the host waits for where it launches it: what is not DDP's, and what `fully_shard` gathers."""
        foreign = [c for c in collectives if not c.own]
        if not foreign and (step.reducer or not collectives):
            return {}
        if not step.reducer and self._sent.sharded:
            sharded = {_SHARDED: union((c.started_s, min(c.finished_s, end_s)) for c in collectives if c.own)}
        else:
            sharded = {}
        operators = self._events.operators
        first, last = (bisect_left(operators, s, key=lambda event: event.start_s) for s in (step.forward_s, end_s))
        computing = union((e.start_s, e.end_s) for e in operators[first:last] if e.name.startswith("aten::"))
        busy = union([*computing, *sharded.get(_SHARDED, [])])
        spans = ((c.operation, max(c.arrived_s, step.forward_s), min(c.finished_s, end_s)) for c in foreign)
        return {**_find_exposed(spans, busy), **{name: each for name, each in sharded.items() if each}}

    def _collective(self, index: int, sent: Sent, step: HostStep) -> CollectiveTimes:
        """Return a collective, a bucket where its size is known, by its call or by its gradients."""
        call, start_s, end_s = sent
        own, edges = self._sent.is_own(call, step), [0, *(bucket.after for bucket in step.collectives)]
        after = next((bucket.after for bucket in step.collectives if own and bucket.launched_s == call.launched_s), 0)
        begin = max((edge for edge in edges if edge < after), default=0)
        parameters, size_bytes = tuple(range(begin, after)), call.size_bytes
        if self._mapping is not None and len(step.accumulations) == len(self._mapping.order):
            parameters = self._mapping.order[begin:after]
            if size_bytes is None:
                size_bytes = sum(self._mapping.parameters[number].size_bytes for number in parameters) or None
        times = CollectiveTimes(
            index=index,
            size_bytes=size_bytes,
            parameters=parameters,
            ready_s=self._computed_s(call.launched_s) if self._on_device else call.launched_s,
            launched_s=call.launched_s,
            started_s=start_s,
            finished_s=end_s,
            operation=call.operation,
            own=own,
            ranks=call.ranks,
        )
        if not parameters or size_bytes is None:
            return times
        return BucketTimes(**{each.name: getattr(times, each.name) for each in fields(times)}, written_s=end_s)

    def _computed_s(self, launched_before_s: float) -> float:
        """Return when the device was done with what the host had launched by then."""
        index = bisect_right(self._launches, launched_before_s) - 1
        return self._latest[index] if index >= 0 else 0.0

    def _device_parts(
        self, step: HostStep, after: HostStep | None, end_s: float, collectives: Sequence[CollectiveTimes]
    ) -> tuple[float, float, dict[str, float]]:
        """Return where the step begins and ends on the device, and its parts between.

        The step runs from the end of the work before its forward to that of the next. The device's own time in
        backward is that of the time line without DDP; what the trace has beyond is DDP's. The time in which nothing
        runs but a collective that is not DDP's is that collective's.
        """
        prefix = [i for i in step.ddp if i.start_s < step.backward_s]
        start_s = max(step.forward_s, self._computed_s(step.forward_s))
        end_s = max(end_s, self._computed_s(end_s), start_s)
        update_s = next((i.start_s for i in step.optimizer if i.start_s >= step.backward_end_s), step.end_s)
        over_s = max((c.finished_s for c in collectives if c.own), default=start_s)
        # Ends of, in order: the broadcast of buffers, forward, backward's work, the host's backward, the last own
        # collective, what precedes the update, and the update. Each is put between the mark before it and the end, as
        # stamps of host and device cross by microseconds, and a part that is negative would be taken off others.
        marks = [start_s]
        for moment_s in (
            max([start_s, *(self._done(i.end_s) for i in prefix)]),
            self._done(step.backward_s),
            self._done(step.backward_end_s),
            step.backward_end_s,
            over_s,
            max(self._done(update_s), min(update_s, end_s)),
            max([start_s, *(self._done(i.end_s) for i in step.optimizer)]),
        ):
            marks.append(min(end_s, max(marks[-1], moment_s)))
        _, ready_s, forward_s, backward_s, waiting_s, over_s, begun_s, updated_s = marks
        exposed = self._find_foreign(step, end_s, collectives)

        def own(begin_s: float, stop_s: float) -> float:
            return stop_s - begin_s - _blocked_s(exposed, begin_s, stop_s)

        # A loop that calls `zero_grad` before forward clears gradients behind the next step's mark, but before this
        # step ends.
        cleared = 0.0 if after is None else sum(i.end_s - i.start_s for i in after.optimizer if i.end_s <= end_s)
        parts = {
            "forward_s": own(ready_s, forward_s),
            "backward_compute_s": self._own_backward_s(step, own(forward_s, backward_s)),
            "exposed_comm_s": own(waiting_s, over_s),
            "buffer_broadcast_s": own(start_s, ready_s),
            "optimizer_s": own(begun_s, updated_s) + min(cleared, own(updated_s, end_s)),
            "input_s": max(0.0, own(updated_s, end_s) - cleared) + (0.0 if step.reducer else own(over_s, begun_s)),
            **_exposed_parts(exposed, start_s, end_s),
        }
        return start_s, end_s, complete_parts(parts, end_s - start_s)

    def _own_backward_s(self, step: HostStep, seconds: float) -> float:
        """Return the device's time in backward without what DDP or the sharding adds, `seconds` at most."""
        if not step.reducer and not self._sent.sharded:
            return seconds
        moment = self._alone.moment
        alone_s = moment(step.backward_end_s) - moment(step.backward_s)
        lead_s = self._alone.done_s(step.backward_end_s) - self._alone.done_s(step.backward_s)
        return min(seconds, max(alone_s, lead_s) if lead_s > 0 else alone_s)

    def _find_foreign(
        self, step: HostStep, end_s: float, collectives: Sequence[CollectiveTimes]
    ) -> dict[str, list[Interval]]:
        """Return when nothing but collectives that are not DDP's ran on the device.

        What the loop launched behind its last kernel runs in the next step.
        """
        here = [(c.operation, c.started_s, c.finished_s) for c in collectives if not c.own]
        spans, self._loop = [*self._loop, *here], here
        if not spans:
            return {}
        works = (w for w in self._select_between(step.forward_s, end_s) if not is_communication(w))
        busy = [(work.start_s, work.end_s) for work in works]
        return _find_exposed(spans, union([*busy, *((c.started_s, c.finished_s) for c in collectives if c.own)]))

    def _done(self, launched_before_s: float) -> float:
        return max(launched_before_s, self._computed_s(launched_before_s))


def _launch_s(work: DeviceWork) -> float:
    return work.start_s if work.launch is None else work.launch.start_s


def _finished_s(step: HostStep, collectives: Sequence[CollectiveTimes]) -> float:
    """Return when DDP was done with backward: on a CPU the host waits there for the last of its collectives."""
    marked_s = max((i.end_s for i in step.ddp if i.start_s >= step.backward_end_s), default=step.backward_end_s)
    last_s = max((c.finished_s for c in collectives if c.own), default=step.backward_end_s)
    update_s = next((i.start_s for i in step.optimizer if i.start_s >= step.backward_end_s), step.end_s)
    return max(marked_s, min(last_s, update_s))


def _host_work(
    step: HostStep, after: HostStep | None, end_s: float, exposed: _Exposed, over_s: float
) -> dict[str, float]:
    """Return the host's own work by phase.

    Args:
        step, after: the step and the next.
        end_s: where the step ends.
        exposed: collectives that the host waits for, which are left out.
        over_s: DDP was done with backward.
    """
    broadcast = sum(i.end_s - i.start_s for i in step.ddp if i.start_s < step.backward_s)
    hooks = sum(i.end_s - i.start_s for i in step.ddp if step.backward_s <= i.start_s < step.backward_end_s)
    updates = [i for i in step.optimizer if i.start_s >= step.backward_end_s]
    updated_s = max((i.end_s for i in updates), default=step.backward_end_s)
    update_s = min((i.start_s for i in updates), default=updated_s)
    cleared = [] if after is None else [i for i in after.optimizer if i.start_s < end_s]
    waits = union((wait.start_s, wait.end_s) for wait in step.waits)

    def own(start_s: float, stop_s: float) -> float:
        if stop_s <= start_s:
            return 0.0
        return stop_s - start_s - _blocked_s(exposed, start_s, stop_s) - intersection([(start_s, stop_s)], waits)

    loop = own(min(over_s, update_s), update_s) + own(updated_s, end_s)
    return {
        "forward": max(0.0, own(step.forward_s, step.backward_s) - broadcast),
        "backward": max(0.0, own(step.backward_s, step.backward_end_s) - hooks),
        "optimizer": sum(own(i.start_s, i.end_s) for i in updates) + sum(i.end_s - i.start_s for i in cleared),
        "input": max(0.0, loop - sum(i.end_s - i.start_s for i in cleared)),
        "hooks": hooks,
    }


def _host_parts(
    step: HostStep, end_s: float, host: Table[str, float], exposed: _Exposed, collectives: Sequence[CollectiveTimes]
) -> dict[str, float]:
    """Return the parts of a step that the host computes itself, of what `_host_work` says of it."""
    last_s = max((c.finished_s for c in collectives if c.own), default=step.backward_end_s)
    begin_s, over_s = step.backward_end_s, min(last_s, _finished_s(step, collectives))
    parts = {
        "forward_s": host["forward"],
        "backward_compute_s": host["backward"],
        "exposed_comm_s": max(0.0, over_s - begin_s - _blocked_s(exposed, begin_s, over_s)),
        "buffer_broadcast_s": sum(i.end_s - i.start_s for i in step.ddp if i.start_s < step.backward_s),
        "optimizer_s": host["optimizer"],
        "input_s": host["input"],
        **_exposed_parts(exposed, step.forward_s, end_s),
    }
    return complete_parts(parts, end_s - step.forward_s)


def _find_exposed(spans: Iterable[tuple[str, float, float]], busy: Sequence[Interval]) -> dict[str, list[Interval]]:
    """Return when collectives were exposed, by operation.

    Args:
        spans: operation, start and end of each collective; what two do at once counts for the operation that comes
            first by name.
        busy: disjoint ascending stretches in which the rank computed, or waited for DDP's collectives.
    """
    by_operation: dict[str, list[Interval]] = {}
    for operation, start_s, end_s in spans:
        if end_s > start_s:
            by_operation.setdefault(operation, []).append((start_s, end_s))
    counted, exposed = list(busy), {}
    for operation, each in sorted(by_operation.items()):
        alone = without(union(each), counted)
        if alone:
            exposed[operation] = alone
            counted = union([*counted, *alone])
    return exposed


def _blocked_s(exposed: _Exposed, start_s: float, end_s: float) -> float:
    """Return how much of the time from `start_s` to `end_s` the rank only waited for these collectives."""
    return sum(intersection([(start_s, end_s)], each) for each in exposed.values()) if end_s > start_s else 0.0


def _exposed_parts(exposed: _Exposed, start_s: float, end_s: float) -> dict[str, float]:
    """Return the parts of a step that collectives which are not DDP's have, by part's name."""
    return {f"{operation}_s": _blocked_s({operation: each}, start_s, end_s) for operation, each in exposed.items()}


def read_iterations(traced: DissectedTrace) -> list[Iteration]:
    """Return the steps of a trace taken apart; bytes are taken to have moved as `bound_wires` says."""
    reader = IterationReader(traced.file, traced.timeline, traced.mapping)
    return bound_wires(
        [reader.read(step, after, 0.0) for step, after in pairwise([*traced.steps, None]) if step is not None]
    )


def buckets_in(traced: DissectedTrace) -> list[dict[str, float]]:
    """Return the buckets of a trace taken apart as JSON objects: medians over its steps, from the start of forward.

    Seconds; `skew_s` and `wire_s` split the collective. None where no allreduce of DDP runs on a device in it.
    """
    if not traced.file.events.works:
        return []
    steps = [
        (step.forward_s, iteration.buckets)
        for step, iteration in zip(traced.steps, read_iterations(traced), strict=True)
        if iteration.synced and len(iteration.buckets) == len(step.collectives)
    ]
    usual = min((len(buckets) for _, buckets in steps), default=0)
    return [_describe_bucket(number, [(start_s, each[number]) for start_s, each in steps]) for number in range(usual)]


def _describe_bucket(number: int, occurrences: Sequence[tuple[float, BucketTimes]]) -> dict[str, float]:
    first = occurrences[0][1]
    moments = ("ready_s", "launched_s", "started_s", "finished_s")
    times = {name: [getattr(bucket, name) - start_s for start_s, bucket in occurrences] for name in moments}
    times |= {"skew_s": [each.wait_s for _, each in occurrences], "wire_s": [each.on_wire_s for _, each in occurrences]}
    what = {"index": number, "parameters": len(first.parameters), "size_bytes": first.size_bytes}
    return what | {name: round(median(each), _NANOSECONDS) for name, each in times.items()}
