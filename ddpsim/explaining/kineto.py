"""A Kineto trace of one rank, of stock torch on GPUs or CPUs, as steps with their parts and collectives."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from statistics import median, mode

from ddpsim.errors import InputError, TraceError
from ddpsim.explaining.basis import basis_of
from ddpsim.explaining.exposed import blocked_s, exposed_parts, find_exposed
from ddpsim.explaining.host_parts import finished_s, host_parts, host_work
from ddpsim.explaining.seen import (
    UNPREDICTED,
    Accumulation,
    SeenCollective,
    SeenRank,
    SeenStep,
    complete_parts,
)
from ddpsim.explaining.sent import DeviceCollective, DeviceCollectives
from ddpsim.strict import parse_whole_number
from ddpsim.trace.metrics import Interval, union
from ddpsim.workload import Workload
from ddpsim.workload.kineto.events import DeviceWork, busy_s
from ddpsim.workload.kineto.mapping import map_arrivals
from ddpsim.workload.kineto.replay import TimelineWithoutDdp
from ddpsim.workload.kineto.steps import HostStep, find_steps, is_communication, micro_batches_of
from ddpsim.workload.kineto.workload import TraceFile, read_kineto

_TORCH = ("aten::", "autograd::", "torch::", "ProfilerStep", "Optimizer.", "c10d::")
_SHARDED = "sharded"
_REDUCING = ("all_reduce", "reduce_scatter")


def read_kineto_rank(path: str | Path, shapes: Workload | None, *, lead: bool) -> SeenRank:
    """Return what a Kineto trace says of its rank.

    Args:
        path: the trace.
        shapes: a workload of the same model, where known.
        lead: whether a prediction is to rest on it.

    Raises:
        TraceError: an unreadable trace, or one without training steps.
    """
    file = read_kineto(path)
    found = _steps_in(file)
    groups, kinds = micro_batches_of(found), [_kind(group) for group in micro_batches_of(found)]
    usual = mode(kinds)
    kept = [[_from_its_forward(s, file) for s in g] for g, kind in zip(groups, kinds, strict=True) if kind == usual]
    left = len(groups) - len(kept)
    notes = [f"{left} steps with another number of gradients, or of micro-batches, left out"] * (left > 0)
    steps = list(chain.from_iterable(kept))
    gradients = mode(len(step.accumulations) for step in steps)
    reader = _Reader(file, found, _arrival_bytes([s for s in steps if len(s.accumulations) == gradients], shapes, file))
    between = [after[0].forward_s - group[-1].end_s for group, after in pairwise(kept)]
    ahead_s = median(between) if between else 0.0
    each = [reader.step(step, after, ahead_s) for step, after in zip(steps, [*steps[1:], None], strict=True)]
    rows = [list(islice(rest, len(group))) for rest in [iter(each)] for group in kept]
    seen = tuple(map(_join, rows))
    basis, ddp = None, any(step.collectives for step in steps)
    unpredicted = _explain_unpredicted(steps, seen, reader.layers)
    if lead and not ddp and any(collective.own for step in seen for collective in step.collectives):
        notes.append(UNPREDICTED + "its collectives are not those that hooks of stock DDP launch")
    elif lead and unpredicted:
        notes.append(f"{UNPREDICTED}{unpredicted}")
    elif lead:
        try:
            waited = [0.0 if file.events.works else row.parts["exposed_comm_s"] for row in each]
            whole = [pair for pair in zip(steps, waited, strict=True) if len(pair[0].accumulations) == gradients]
            basis = basis_of(file, reader.alone, whole, shapes)
        except InputError as error:
            notes.append(f"{UNPREDICTED}{error}")
    return SeenRank(
        rank=file.rank,
        world_size=file.world_size,
        backend=file.backend,
        device=file.device,
        place=file.place,
        kind="kineto",
        scheme="ddp" if ddp else "other",
        steps=seen,
        notes=tuple(notes),
        clock=file.host,
        made_by=basis,
        gpus=file.gpus,
        base_ns=file.base_ns,
        accumulation=_accumulation(rows, ddp=ddp),
    ).shift(file.events.origin_s)


def _steps_in(file: TraceFile) -> list[HostStep]:
    """Return the trace's steps.

    Raises:
        TraceError: none, with what the trace seems to be.
    """
    operators = file.events.operators
    if not any(event.name.startswith(_TORCH) for event in operators):
        remedy = "record training with torch.profiler, CPU activity included"
        raise TraceError("no operator of torch is in it: of another framework?", place=file.place, remedy=remedy)
    try:
        return find_steps(file.events, file.place)
    except TraceError:
        if not any("ompiledFunction" in e.name or "Torch-Compiled" in e.name for e in operators):
            raise
        what = "no gradient is accumulated outside its compiled graphs, so that no hook tells backward's course"
        remedy = "trace a step without compiled autograd"
        raise TraceError(what, place=file.place, remedy=remedy) from None


def _arrival_bytes(steps: Sequence[HostStep], shapes: Workload | None, file: TraceFile) -> list[int]:
    """Return the bytes of each gradient in order of arrival; empty where the trace has no shapes and none are given."""
    try:
        mapping = map_arrivals(steps, shapes, file.place)
    except InputError:
        return []
    return [mapping.parameters[index].size_bytes for index in mapping.order]


def _kind(group: Sequence[HostStep]) -> tuple[int, int]:
    """Return by what steps are alike: their micro-batches, or the gradients of the only one."""
    return len(group), len(group[0].accumulations) if len(group) == 1 else 0


def _join(rows: Sequence[SeenStep]) -> SeenStep:
    """Return the step that micro-batches make."""
    if len(rows) == 1:
        return rows[0]
    sent = chain.from_iterable(row.collectives for row in rows)
    parts, host, device = (
        dict(sum((Counter(getattr(row, name)) for row in rows), Counter())) for name in ("parts", "host_s", "device_s")
    )
    return replace(
        rows[-1],
        start_s=rows[0].start_s,
        parts={name: parts.get(name, 0.0) for row in rows for name in row.parts},
        host_s={name: host.get(name, 0.0) for name in rows[0].host_s},
        device_s={name: device.get(name, 0.0) for name in rows[0].device_s},
        collectives=tuple(replace(each, index=index) for index, each in enumerate(sent)),
    )


def _accumulation(steps: Sequence[Sequence[SeenStep]], *, ddp: bool) -> Accumulation | None:
    """Return over how many micro-batches a step accumulates gradients, and what reducing them before the last costs.

    Those reduce gradients that sum half as much as the most of them: a loop may sum its loss in each.
    """
    if len(steps[0]) == 1:
        return None
    own = any(c.own for rows in steps for row in rows for c in row.collectives)
    sums = [
        [sum(c.size_bytes or 1 for c in r.collectives if c.own >= own and c.operation in _REDUCING) for r in rows]
        for rows in steps
    ]
    reducing = round(median(sum(0 < 2 * each >= max(row) for each in row) for row in sums))
    waits_s = median(sum(row.parts["exposed_comm_s"] for row in rows[:-1]) for rows in steps) if ddp else None
    return Accumulation(len(steps[0]), reducing, waits_s)


def _from_its_forward(step: HostStep, file: TraceFile) -> HostStep:
    """Return the step from where fully_shard's forward begins, where that is its; DDP marks its own."""
    operators = file.events.operators
    begin, end = (
        bisect_left(operators, moment_s, key=lambda event: event.start_s)
        for moment_s in (step.forward_s, step.backward_s)
    )
    mark = next((operators[n] for n in range(begin, end) if operators[n].name.startswith("FSDP::")), None)
    return step if mark is None or step.collectives else replace(step, forward_s=mark.start_s)


def _explain_unpredicted(steps: Sequence[HostStep], seen: Sequence[SeenStep], counts: Sequence[Counter[str]]) -> str:
    """Return why collectives that are not DDP's keep a step from being predicted; empty where they do not.

    What the loop does between backward and the next forward is taken as traced. What layers wait for within forward
    and backward is not: the simulator knows no such collective.
    """
    usual = Counter({name: round(median(each[name] for each in counts)) for name in set().union(*counts)})
    if any(usual.values()):
        many = ", ".join(f"{count} {name}" for name, count in sorted(usual.items()) if count)
        what = f"forward and backward hold collectives that are not DDP's, {many} a step"
        return f"{what}: the simulator has nothing that waits for those"
    if not any(step.reducer for step in steps) and any(each.collectives for each in seen):
        return "its gradients are not reduced by DDP, the collectives between backward and the optimizer are the loop's"
    return ""


class _Reader:
    def __init__(self, file: TraceFile, found: Sequence[HostStep], arrival_bytes: Sequence[int]) -> None:
        self._events, self._file, self._arrival_bytes = file.events, file, arrival_bytes
        self._on_device = bool(file.events.works)
        self._works = sorted((w for w in file.events.works if w.launch is not None), key=_launch_s)
        self._launches = [_launch_s(work) for work in self._works]
        self.alone = TimelineWithoutDdp(file.events.works, found)
        ends = [work.end_s if not is_communication(work) else 0.0 for work in self._works]
        self._latest = list(accumulate(ends, max))
        self._sent = DeviceCollectives(file.events)
        self.layers: list[Counter[str]] = []
        self._loop: list[tuple[str, float, float]] = []

    def step(self, step: HostStep, after: HostStep | None, ahead_s: float) -> SeenStep:
        """Return a step; the last ends where the next forward would have begun, `ahead_s` behind its mark."""
        end_s = after.forward_s if after is not None else max(step.end_s + ahead_s, step.forward_s)
        sent = self._sent.list_in_step(step, end_s, self._select_between(step.forward_s, end_s))
        self.layers.append(Counter(e.operation for e in sent if not e.own and e.launched_s < step.backward_end_s))
        collectives = tuple(self._collective(index, each, step) for index, each in enumerate(sent))
        if self._on_device:
            host = host_work(step, after, end_s, {}, finished_s(step, ()))
            device = self._device_work(step, end_s)
            start_s, end_s, parts = self._device_parts(step, after, end_s, collectives)
        else:
            start_s, device, over_s = step.forward_s, {}, finished_s(step, collectives)
            exposed = self._find_blocking(step, end_s, collectives)
            host = host_work(step, after, end_s, exposed, over_s)
            named = {name: each for name, each in exposed.items() if name != _SHARDED}
            parts = host_parts(step, end_s, host, named, collectives)
            if _SHARDED in exposed:
                waited_s = blocked_s({_SHARDED: exposed[_SHARDED]}, step.forward_s, end_s)
                parts = complete_parts({**parts, "exposed_comm_s": waited_s}, end_s - start_s)
        match = re.search(r"([0-9]+)$", step.name)
        number = (parse_whole_number(match[1]) if match else None) or 0
        return SeenStep(
            number, start_s, end_s, parts, host, device, collectives, counts=after is not None or ahead_s > 0
        )

    def _select_between(self, start_s: float, end_s: float) -> Sequence[DeviceWork]:
        return self._works[bisect_left(self._launches, start_s) : bisect_left(self._launches, end_s)]

    def _find_blocking(
        self, step: HostStep, end_s: float, collectives: Sequence[SeenCollective]
    ) -> dict[str, list[Interval]]:
        """Return what the host waits for where it launches it: what is not DDP's, and what `fully_shard` gathers."""
        found = [c for c in collectives if not c.own]
        if not found and (step.reducer or not collectives):
            return {}
        if not step.reducer and self._sent.sharded:
            sharded = {_SHARDED: union((c.started_s, min(c.finished_s, end_s)) for c in collectives if c.own)}
        else:
            sharded = {}
        operators = self._events.operators
        first, last = (bisect_left(operators, s, key=lambda event: event.start_s) for s in (step.forward_s, end_s))
        computing = union((e.start_s, e.end_s) for e in operators[first:last] if e.name.startswith("aten::"))
        busy = union([*computing, *sharded.get(_SHARDED, [])])
        spans = ((c.operation, max(c.arrived_s, step.forward_s), min(c.finished_s, end_s)) for c in found)
        return {**find_exposed(spans, busy), **{name: each for name, each in sharded.items() if each}}

    def _collective(self, index: int, sent: DeviceCollective, step: HostStep) -> SeenCollective:
        afters = [0, *(c.after for c in step.collectives)]
        begin = max((edge for edge in afters if edge < sent.after), default=0)
        everyone = sent.own or sent.ranks is None or sent.ranks == self._file.world_size
        size_bytes = sent.size_bytes
        if size_bytes is None and len(step.accumulations) == len(self._arrival_bytes):
            size_bytes = sum(self._arrival_bytes[begin : sent.after]) or None
        arrived_s = max(sent.launched_s, self._computed_s(sent.launched_s)) if self._on_device else sent.launched_s
        return SeenCollective(
            index, sent.operation, size_bytes, sent.after - begin, min(arrived_s, sent.end_s), sent.start_s,
            sent.end_s, sent.own, everyone,
        )  # fmt: skip

    def _computed_s(self, launched_before_s: float) -> float:
        """Return when the device was done with what the host had launched by then."""
        index = bisect_right(self._launches, launched_before_s) - 1
        return self._latest[index] if index >= 0 else 0.0

    def _device_work(self, step: HostStep, end_s: float) -> dict[str, float]:
        spans = {
            "forward": (step.forward_s, step.backward_s),
            "backward": (step.backward_s, step.backward_end_s),
            "optimizer": (step.backward_end_s, end_s),
        }
        return {
            phase: busy_s(work for work in self._select_between(*span) if not is_communication(work))
            for phase, span in spans.items()
        }

    def _device_parts(
        self, step: HostStep, after: HostStep | None, end_s: float, collectives: Sequence[SeenCollective]
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
            return stop_s - begin_s - blocked_s(exposed, begin_s, stop_s)

        cleared = 0.0 if after is None else sum(i.end_s - i.start_s for i in after.optimizer if i.end_s <= end_s)
        parts = {
            "forward_s": own(ready_s, forward_s),
            "backward_compute_s": self._own_backward_s(step, own(forward_s, backward_s)),
            "exposed_comm_s": own(waiting_s, over_s),
            "buffer_broadcast_s": own(start_s, ready_s),
            "optimizer_s": own(begun_s, updated_s) + min(cleared, own(updated_s, end_s)),
            "input_s": max(0.0, own(updated_s, end_s) - cleared) + (0.0 if step.reducer else own(over_s, begun_s)),
            **exposed_parts(exposed, start_s, end_s),
        }
        return start_s, end_s, complete_parts(parts, end_s - start_s)

    def _own_backward_s(self, step: HostStep, seconds: float) -> float:
        """Return what of a device's backward is the model's."""
        if not step.reducer and not self._sent.sharded:
            return seconds
        moment = self.alone.moment
        alone_s = moment(step.backward_end_s) - moment(step.backward_s)
        lead_s = self.alone.done_s(step.backward_end_s) - self.alone.done_s(step.backward_s)
        return min(seconds, max(alone_s, lead_s) if lead_s > 0 else alone_s)

    def _find_foreign(
        self, step: HostStep, end_s: float, collectives: Sequence[SeenCollective]
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
        return find_exposed(spans, union([*busy, *((c.started_s, c.finished_s) for c in collectives if c.own)]))

    def _done(self, launched_before_s: float) -> float:
        return max(launched_before_s, self._computed_s(launched_before_s))


def _launch_s(work: DeviceWork) -> float:
    return work.start_s if work.launch is None else work.launch.start_s
