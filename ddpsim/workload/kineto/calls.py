"""Collectives as the host of a Kineto trace calls them, whoever does: DDP, layers, the loop.

A device's kernel does not always say which collective it is: an all-to-all runs as a `SendRecv` kernel, and RCCL's are
all named `ncclDevKernel_Generic` (ROCm/roctracer#101). The call on the host says it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ddpsim.workload.kineto.events import HostEvent, dtype_named
from ddpsim.workload.kineto.steps import HostStep

_MOST = 1 << 60
"""No tensor has as many values."""
CALL, DETAILS = "c10d::", "record_param_comms"
"""What names of calls begin with, and the event inside a call that says what is sent."""

_WORDS = (
    ("alltoall", "all_to_all"), ("allreduce", "all_reduce"), ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"), ("broadcast", "broadcast"), ("barrier", "barrier"), ("scatter", "scatter"),
    ("gather", "gather"), ("sendrecv", "send_recv"), ("send", "send_recv"), ("recv", "send_recv"), ("reduce", "reduce"),
)  # fmt: skip
"""Words in names of calls and kernels without underscores, and the operation, the more special first."""
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


def width_of(dtype: str) -> int:
    """Return the bytes of a value of a type that `dtype_named` knows."""
    return _WIDTHS.get(dtype, 4)


def calls_in(operators: Sequence[HostEvent]) -> list[Call]:
    """Return the calls among a trace's operators, by start."""
    details = [event for event in operators if event.name == DETAILS]
    begun = [event.start_s for event in details]
    found = []
    for event in operators:
        if not event.name.startswith(CALL) or (operation := operation_named(event.name)) is None:
            continue
        at = bisect_right(begun, event.start_s)
        inside = details[at] if at < len(details) and details[at].start_s <= event.end_s else None
        args = event.args if inside is None else inside.args
        ranks = args.get("Group size")
        found.append(
            Call(
                operation, event.start_s, event.end_s, event.thread, _size(args, event.args),
                ranks if isinstance(ranks, int) else None,
            )
        )  # fmt: skip
    return found


def _size(said: Mapping[str, object], called: Mapping[str, object]) -> int | None:
    elements, dtype = said.get("In msg nelems"), dtype_named(said.get("dtype"))
    if isinstance(elements, int) and dtype is not None:
        return elements * width_of(dtype) if 0 <= elements < _MOST else None
    return dimensions_bytes(called)


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
    return count * width_of(dtype)
