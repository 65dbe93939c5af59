"""The collectives of a Kineto trace, whoever calls them: the host's calls, and what was on the wire of each.

A device's kernel does not always say which collective it is: an all-to-all runs as a `SendRecv` kernel, and RCCL's are
all named `ncclDevKernel_Generic` (ROCm/roctracer#101). The call on the host says it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddpsim.workload.kineto.events import DeviceWork, Events, HostEvent, dtype_named
from ddpsim.workload.kineto.steps import HostStep, is_communication

_MOST = 1 << 60
"""No tensor has as many values."""
_CALL, _DETAILS = "c10d::", "record_param_comms"
"""What names of calls begin with, and the event inside a call that says what is sent."""

_WORDS = (
    ("alltoall", "all_to_all"), ("allreduce", "all_reduce"), ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"), ("broadcast", "broadcast"), ("barrier", "barrier"), ("scatter", "scatter"),
    ("gather", "gather"), ("sendrecv", "send_recv"), ("send", "send_recv"), ("recv", "send_recv"), ("reduce", "reduce"),
)  # fmt: skip
"""Words in names of calls and kernels without underscores, and the operation, the more special first."""
_GLOO = "gloo:"
_FULLY_SHARDED = "FSDP::"
_SHARDINGS = ("all_gather", "reduce_scatter", "all_reduce")
"""Collectives of `fully_shard`; of others in such a job nothing says that they are its."""
_WIDTHS = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a collective.

    Attributes:
        operation: as torch names it: `all_to_all`, `all_reduce`, ...
        launched_s, returned_s: the call began, and was over; the collective may go on.
        size_bytes: that this rank gives; None where the trace does not say.
        ranks: how many take part; None likewise.
    """

    operation: str
    launched_s: float
    returned_s: float
    thread: object
    size_bytes: int | None
    ranks: int | None


def foreign_calls(calls: Sequence[Call], step: HostStep) -> Counter[str]:
    """Return how many collectives that are not DDP's forward and backward of a step call, by operation."""
    first = max((i.end_s for i in step.ddp if i.start_s < step.backward_s), default=step.forward_s)
    inside = (call for call in calls if first <= call.launched_s < step.backward_end_s)
    return Counter(call.operation for call in inside if call.launched_s not in step.hooked)


def operation_named(name: str) -> str | None:
    """Return the operation that a call, a kernel or a thread of gloo's is named after; None where it names none."""
    flat = name.lower().replace("_", "")
    return next((operation for word, operation in _WORDS if word in flat), None)


def calls_in(operators: Sequence[HostEvent]) -> list[Call]:
    """Return the calls among a trace's operators, by start."""
    details = [event for event in operators if event.name == _DETAILS]
    begun = [event.start_s for event in details]
    calls = []
    for event in operators:
        if not event.name.startswith(_CALL) or (operation := operation_named(event.name)) is None:
            continue
        at = bisect_right(begun, event.start_s)
        inside = details[at] if at < len(details) and details[at].start_s <= event.end_s else None
        args = event.args if inside is None else inside.args
        ranks, elements, dtype = args.get("Group size"), args.get("In msg nelems"), dtype_named(args.get("dtype"))
        size = dimensions_bytes(event.args)
        if isinstance(elements, int) and dtype is not None:
            size = elements * _WIDTHS.get(dtype, 4) if 0 <= elements < _MOST else None
        calls.append(
            Call(
                operation, event.start_s, event.end_s, event.thread, size,
                ranks if isinstance(ranks, int) else None,
            )
        )  # fmt: skip
    return calls


def dimensions_bytes(args: Mapping[str, object]) -> int | None:
    """Return the bytes of an event's first input; None where it has no shapes, or no type, as a list of tensors."""
    dimensions, types = args.get("Input Dims"), args.get("Input type")
    dtype = dtype_named(types[0]) if isinstance(types, list) and types else None
    if dtype is None or not (isinstance(dimensions, list) and dimensions and isinstance(dimensions[0], list)):
        return None
    first = dimensions[0]
    shapes = first if first and all(isinstance(shape, list) for shape in first) else [first]
    count = 0
    for shape in shapes:
        each = 1
        for size in shape:
            if not isinstance(size, int):
                return None
            each *= size
            if not 0 <= each < _MOST:
                return None
        count += each
    return count * _WIDTHS.get(dtype, 4)


Sent = tuple[Call, float, float]
"""A collective as the trace has it: its call, and when it began and ended on the device, or on a thread of gloo's."""


class DeviceCollectives:
    """Finds the collectives of steps in one trace's events."""

    def __init__(self, events: Events) -> None:
        self._calls = calls_in(events.operators)
        self._called = [call.launched_s for call in self._calls]
        self._on_device = bool(events.works)
        self.sharded = any(event.name.startswith(_FULLY_SHARDED) for event in events.operators)
        self._gloo = [event for event in events.operators if event.name.startswith(_GLOO)]
        self._gloo_starts = [event.start_s for event in self._gloo]

    def list_in_step(self, step: HostStep, end_s: float, launched: Sequence[DeviceWork]) -> list[Sent]:
        """Return a step's collectives in launch order, without the broadcast of buffers at its start.

        Args:
            step: the step.
            end_s: where the next begins.
            launched: the device's works that its host launched, by launch.
        """
        prefix_s = max((i.end_s for i in step.ddp if i.start_s < step.backward_s), default=step.forward_s)
        begin_s = max(prefix_s, step.forward_s)
        sent = self._list_on_device(begin_s, launched) if self._on_device else self._list_on_gloo(begin_s, end_s)
        if not self._on_device and step.reducer:
            # Where nothing marks the prefix, the broadcast of buffers is the one before anything of forward.
            sent = [each for each in sent if each[0].operation != "broadcast" or each[1] >= step.backward_s]
        return sent

    def is_own(self, call: Call, step: HostStep) -> bool:
        """Whether a collective of a step is DDP's or `fully_shard`'s, not a layer's or the loop's."""
        return call.launched_s in step.hooked if step.reducer else self.sharded and call.operation in _SHARDINGS

    def _list_on_device(self, begin_s: float, launched: Sequence[DeviceWork]) -> list[Sent]:
        collectives = []
        for work in launched:
            if work.launch is None or work.launch.start_s < begin_s or not is_communication(work):
                continue
            call = self._call_at(work.launch.start_s, work.launch.thread)
            if call is None:
                operation = operation_named(work.name.partition("(")[0]) or "collective"
                call = _unseen_call(operation, work.launch.start_s, None)
            collectives.append((call, work.start_s, work.end_s))
        return collectives

    def _call_at(self, moment_s: float, thread: object) -> Call | None:
        """Return the innermost call on a thread that a moment is in, or that was the last before it there."""
        at = bisect_right(self._called, moment_s) - 1
        last = None
        while at >= 0 and moment_s - self._called[at] < 1.0:
            call = self._calls[at]
            if call.thread == thread:
                if moment_s <= call.returned_s:
                    return call
                last = last or call
            at -= 1
        return last if last is not None and last.operation in ("send_recv", "all_to_all") else None

    def _list_on_gloo(self, begin_s: float, end_s: float) -> list[Sent]:
        """Return what ran on gloo's threads, each with the first call of its operation that no other event has."""
        events = self._gloo[bisect_left(self._gloo_starts, begin_s) : bisect_left(self._gloo_starts, end_s)]
        calls = self._calls[bisect_left(self._called, begin_s) : bisect_left(self._called, end_s)]
        free: dict[str, list[Call]] = {}
        for call in calls:
            free.setdefault(call.operation, []).append(call)
        collectives = []
        for event in events:
            operation = operation_named(event.name.removeprefix(_GLOO)) or event.name.removeprefix(_GLOO)
            size = dimensions_bytes(event.args)
            waiting = free.get(operation, [])
            fits = (
                c for c in waiting if c.launched_s <= event.start_s and (size is None or c.size_bytes in (size, None))
            )
            match = next(fits, waiting[0] if waiting and waiting[0].launched_s <= event.start_s else None)
            if match is None:
                match = _unseen_call(operation, event.start_s, size)
            else:
                waiting.remove(match)
            call = match if size is None else replace(match, size_bytes=size)
            collectives.append((call, event.start_s, event.end_s))
        return sorted(collectives, key=lambda each: each[0].launched_s)


def _unseen_call(operation: str, launched_s: float, size_bytes: int | None) -> Call:
    return Call(operation, launched_s, launched_s, None, size_bytes, None)
