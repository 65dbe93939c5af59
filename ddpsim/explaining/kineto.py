"""A Kineto trace of one rank, of stock torch on GPUs or CPUs, as steps with their parts and collectives."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median, mode

from ddpsim.errors import InputError, TraceError
from ddpsim.explaining.basis import basis_of
from ddpsim.explaining.host_parts import host_parts, host_work
from ddpsim.explaining.seen import SeenCollective, SeenRank, SeenStep
from ddpsim.trace.overlap import length, union
from ddpsim.workload import Workload
from ddpsim.workload.kineto.events import DeviceWork, busy_s
from ddpsim.workload.kineto.replay import TimelineWithoutDdp
from ddpsim.workload.kineto.steps import Step, find_steps, is_communication
from ddpsim.workload.kineto.workload import TraceFile, read_kineto

_GLOO = "gloo:"
_TORCH = ("aten::", "autograd::", "torch::", "ProfilerStep", "Optimizer.", "c10d::")
_OPERATIONS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "broadcast": "broadcast",
    "sendrecv": "send_recv", "alltoall": "all_to_all", "reduce": "reduce",
}  # fmt: skip
_BYTES = {"float": 4, "double": 8, "c10::half": 2, "c10::bfloat16": 2, "long int": 8, "int": 4, "unsigned char": 1}


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
    usual = mode(len(step.accumulations) for step in found)
    steps = [_from_its_forward(step, file) for step in found if len(step.accumulations) == usual]
    notes = [f"{len(found) - len(steps)} steps with another number of gradients left out"] * (len(steps) < len(found))
    reader = _Reader(file, found)
    between = [after.forward_s - step.end_s for step, after in pairwise(steps)]
    ahead_s = median(between) if between else 0.0
    seen = tuple(reader.step(step, after, ahead_s) for step, after in zip(steps, [*steps[1:], None], strict=True))
    basis, ddp = None, any(step.collectives for step in steps)
    if lead and not ddp and any(step.collectives for step in seen):
        notes.append("no prediction: its collectives are not those that hooks of stock DDP launch")
    elif lead:
        try:
            waited = {
                step.name: 0.0 if file.events.works else each.parts["exposed_comm_s"]
                for step, each in zip(steps, seen, strict=True)
            }
            basis = basis_of(file, reader.alone, steps, shapes, waited)
        except InputError as error:
            notes.append(f"no prediction: {error}")
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
    ).moved(file.events.origin_s)


def _steps_in(file: TraceFile) -> list[Step]:
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


def _from_its_forward(step: Step, file: TraceFile) -> Step:
    """Return the step from where fully_shard's forward begins, where that is its; DDP marks its own."""
    operators = file.events.operators
    begin, end = (
        bisect_left(operators, moment_s, key=lambda event: event.start_s)
        for moment_s in (step.forward_s, step.backward_s)
    )
    mark = next((operators[n] for n in range(begin, end) if operators[n].name.startswith("FSDP::")), None)
    return step if mark is None or step.collectives else replace(step, forward_s=mark.start_s)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A collective as the trace has it: on the device, or on a thread of gloo's."""

    operation: str
    launched_s: float
    start_s: float
    end_s: float
    size_bytes: int | None
    after: int = 0


class _Reader:
    def __init__(self, file: TraceFile, found: Sequence[Step]) -> None:
        self._events, self._file = file.events, file
        self._on_device = bool(file.events.works)
        self._works = sorted((w for w in file.events.works if w.launch is not None), key=_launch_s)
        self._launches = [_launch_s(work) for work in self._works]
        self.alone = TimelineWithoutDdp(file.events.works, found)
        ends = [work.end_s if not is_communication(work) else 0.0 for work in self._works]
        self._latest = list(accumulate(ends, max))
        self._gloo = [event for event in file.events.operators if event.name.startswith(_GLOO)]
        self._gloo_starts = [event.start_s for event in self._gloo]

    def step(self, step: Step, after: Step | None, ahead_s: float) -> SeenStep:
        """Return a step; the last ends where the next forward would have begun, `ahead_s` behind its mark."""
        end_s = after.forward_s if after is not None else max(step.end_s + ahead_s, step.forward_s)
        sent = self._sent(step, end_s)
        collectives = tuple(self._collective(index, each, step) for index, each in enumerate(sent))
        host = host_work(step, after, end_s, [] if step.collectives else collectives)
        device = self._device_work(step, end_s) if self._on_device else {}
        if self._on_device:
            start_s, end_s, parts = self._device_parts(step, after, end_s, collectives)
        else:
            start_s, parts = step.forward_s, host_parts(step, end_s, host, collectives)
            if not step.collectives:
                held_s = length(union((max(c.started_s, start_s), min(c.finished_s, end_s)) for c in collectives))
                parts["ddp_overhead_s"] -= held_s - parts["exposed_comm_s"]
                parts["exposed_comm_s"] = held_s
        number = int(match[1]) if (match := re.search(r"(\d+)$", step.name)) else 0
        return SeenStep(
            number, start_s, end_s, parts, host, device, collectives, counts=after is not None or ahead_s > 0
        )

    def _between(self, start_s: float, end_s: float) -> Sequence[DeviceWork]:
        return self._works[bisect_left(self._launches, start_s) : bisect_left(self._launches, end_s)]

    def _sent(self, step: Step, end_s: float) -> list[_Sent]:
        """Return the step's collectives in launch order, without the broadcast of buffers at its start."""
        prefix_s = max((i.end_s for i in step.ddp if i.start_s < step.backward_s), default=step.forward_s)
        begin_s = prefix_s if prefix_s > step.forward_s else step.forward_s
        if not self._on_device:
            inside = self._gloo[bisect_left(self._gloo_starts, begin_s) : bisect_left(self._gloo_starts, end_s)]
            buffers = bool(step.collectives)
            kept = [e for e in inside if not (buffers and e.name == "gloo:broadcast" and e.start_s < step.backward_s)]
            launched = [c.launched_s for c in step.collectives]
            afters = [c.after for c in step.collectives]
            same = len(kept) == len(launched)
            return [
                _Sent(
                    event.name.removeprefix(_GLOO), launched[n] if same else event.start_s, event.start_s, event.end_s,
                    _dimensions_bytes(event.args), afters[n] if same else 0,
                )
                for n, event in enumerate(kept)
            ]  # fmt: skip
        starts, taken, found = [c.launched_s for c in step.collectives], set[int](), []
        for work in self._between(begin_s, end_s):
            if is_communication(work):
                at = bisect_right(starts, _launch_s(work)) - 1
                bucket = step.collectives[at] if at >= 0 and at not in taken else None
                taken.add(at)
                size = None if bucket is None or bucket.elements is None else bucket.elements * _width(bucket.dtype)
                after = 0 if bucket is None else bucket.after
                found.append(_Sent(_operation(work.name), _launch_s(work), work.start_s, work.end_s, size, after))
        return found

    def _collective(self, index: int, sent: _Sent, step: Step) -> SeenCollective:
        afters = [0, *(c.after for c in step.collectives)]
        begin = max((edge for edge in afters if edge < sent.after), default=0)
        arrived_s = max(sent.launched_s, self._computed_s(sent.launched_s)) if self._on_device else sent.launched_s
        return SeenCollective(
            index, sent.operation, sent.size_bytes, sent.after - begin, min(arrived_s, sent.end_s), sent.start_s,
            sent.end_s,
        )  # fmt: skip

    def _computed_s(self, launched_before_s: float) -> float:
        """Return when the device was done with what the host had launched by then."""
        index = bisect_right(self._launches, launched_before_s) - 1
        return self._latest[index] if index >= 0 else 0.0

    def _device_work(self, step: Step, end_s: float) -> dict[str, float]:
        spans = {
            "forward": (step.forward_s, step.backward_s),
            "backward": (step.backward_s, step.backward_end_s),
            "optimizer": (step.backward_end_s, end_s),
        }
        return {
            phase: busy_s(work for work in self._between(*span) if not is_communication(work))
            for phase, span in spans.items()
        }

    def _device_parts(
        self, step: Step, after: Step | None, end_s: float, collectives: Sequence[SeenCollective]
    ) -> tuple[float, float, dict[str, float]]:
        """Return where the step begins and ends on the device, and its parts between.

        The step runs from the end of the work before its forward to that of the next. The device's own time in
        backward is that of the time line without DDP; what the trace has beyond is DDP's.
        """
        prefix = [i for i in step.ddp if i.start_s < step.backward_s]
        start_s = max(step.forward_s, self._computed_s(step.forward_s))
        end_s = max(end_s, self._computed_s(end_s))
        ready_s = max([start_s, *(self._done(i.end_s) for i in prefix)])
        forward_s = max(ready_s, self._done(step.backward_s))
        backward_s = max(forward_s, self._done(step.backward_end_s))
        over_s = max((c.finished_s for c in collectives), default=backward_s)
        exposed = max(0.0, over_s - max(backward_s, step.backward_end_s))
        update_s = next((i.start_s for i in step.optimizer if i.start_s >= step.backward_end_s), step.end_s)
        begun_s = max(backward_s, self._done(update_s), min(update_s, end_s))
        updated_s = max([begun_s, *(max(i.end_s, self._done(i.end_s)) for i in step.optimizer)])
        updated_s = min(updated_s, end_s)
        cleared = 0.0 if after is None else sum(i.end_s - i.start_s for i in after.optimizer if i.end_s <= end_s)
        moment = self.alone.moment
        alone_s = moment(step.backward_end_s) - moment(step.backward_s)
        lead_s = self.alone.done_s(step.backward_end_s) - self.alone.done_s(step.backward_s)
        own_s = min(backward_s - forward_s, max(alone_s, lead_s) if lead_s > 0 else alone_s)
        parts = {
            "forward_s": forward_s - ready_s,
            "backward_compute_s": own_s,
            "exposed_comm_s": exposed,
            "buffer_broadcast_s": ready_s - start_s,
            "optimizer_s": updated_s - begun_s + min(cleared, end_s - updated_s),
            "input_s": max(0.0, end_s - updated_s - cleared),
        }
        return start_s, end_s, {**parts, "ddp_overhead_s": end_s - start_s - sum(parts.values())}

    def _done(self, launched_before_s: float) -> float:
        return max(launched_before_s, self._computed_s(launched_before_s))


def _launch_s(work: DeviceWork) -> float:
    return work.start_s if work.launch is None else work.launch.start_s


def _operation(kernel: str) -> str:
    flat = kernel.lower().replace("_", "")
    return next((name for word, name in _OPERATIONS.items() if word in flat), "collective")


def _width(dtype: str | None) -> int:
    return {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}.get(dtype or "", 4)


def _dimensions_bytes(args: Mapping[str, object]) -> int | None:
    dimensions, types = args.get("Input Dims"), args.get("Input type")
    if not (isinstance(dimensions, list) and dimensions and isinstance(dimensions[0], list)):
        return None
    count = 1
    for size in dimensions[0]:
        if not isinstance(size, int):
            return None
        count *= size
    kind = str(types[0]).lower() if isinstance(types, list) and types else "float"
    return count * _BYTES.get(kind, 4)
