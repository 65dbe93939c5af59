"""Which parameter each gradient of a trace belongs to, and when forward first needs each.

A node of backward has the sequence number of the operator of forward that made it. The node that runs just before a
gradient is accumulated gave the last part of it: backward goes through forward in reverse, so that its operator is the
first that reads the parameter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import TraceError, WorkloadError
from ddpsim.workload.kineto.events import Events, HostEvent, dtype_named
from ddpsim.workload.kineto.replay import TimelineWithoutDdp
from ddpsim.workload.kineto.steps import ACCUMULATE, NODE, HostStep
from ddpsim.workload.profile import ForwardUse, Workload, median_use


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping says which parameter of the model each traced gradient is of.

    Attributes:
        parameters: in registration order.
        order: registration index of each arrival.
        how: for people, how it was found and what confirmed it.
    """

    parameters: tuple[Parameter, ...]
    order: tuple[int, ...]
    how: str


def map_arrivals(steps: Sequence[HostStep], shapes: Workload | None, place: str) -> Mapping:
    """Return which parameter each arrival is.

    With `shapes`, its own arrival order is tried first, then the reverse of registration; the sizes of the trace's
    allreduces decide. Without, the trace must hold shapes, and registration is taken as the reverse of arrival. Types
    of gradients are the trace's where it has them.

    Raises:
        TraceError: no shapes in the trace and none given.
        WorkloadError: `shapes` has another number of gradients, or sizes that do not fit the allreduces.
    """
    if shapes is None:
        return _from_trace(steps[0], place)
    return _with_dtypes(_map_by_shapes(steps[0], shapes, place), _dtypes(steps[0]), shapes.name)


def _map_by_shapes(step: HostStep, shapes: Workload, place: str) -> Mapping:
    count = len(step.accumulations)
    orders = {
        f"by the arrival order of {shapes.name}": [
            i for i in shapes.arrival_order() if shapes.gradient_hook_s[0, i] >= 0
        ],
        "by the reverse of registration": list(range(len(shapes.parameters) - 1, -1, -1)),
    }
    first = next(iter(orders.values()))
    if len(first) != count:
        what = f"{shapes.name} has {len(first)} gradients an iteration, {place} has {count}"
        raise WorkloadError(what, place="shapes", remedy="give a workload of the traced model")
    # Gradients that had arrived by then, and elements, of each allreduce whose size the trace gives.
    buckets = [(collective.after, collective.elements) for collective in step.collectives if collective.elements]
    for how, order in orders.items():
        if buckets and _mismatch(buckets, order, shapes.parameters) is None:
            confirmed = f"confirmed by {len(buckets)} allreduces of {', '.join(f'{n:,}' for _, n in buckets)} elements"
            return Mapping(shapes.parameters, tuple(order), f"arrivals mapped {how}, {confirmed}")
    how = f"arrivals mapped {next(iter(orders))}"
    if not buckets:
        return Mapping(shapes.parameters, tuple(first), f"{how}; no allreduce in the trace confirms it")
    # No order fits, as where buckets were rebuilt or planned in another. The model is the same where all allreduces
    # together sum as many elements as it has: then the order of `shapes` is the best guess; else it is another model.
    total, elements = sum(p.numel for p in shapes.parameters), sum(n for _, n in buckets)
    if total != elements:
        what = (
            f"{_mismatch(buckets, first, shapes.parameters)}; all together hold {elements:,}, {shapes.name} {total:,}"
        )
        raise WorkloadError(what, place="shapes", remedy="give a workload of the traced model")
    return Mapping(shapes.parameters, tuple(first), f"{how}; the trace's buckets are not in arrival order")


def _from_trace(step: HostStep, place: str) -> Mapping:
    shapes = []
    for accumulation in step.accumulations:
        dimensions = accumulation.args.get("Input Dims")
        inner = dimensions[0] if isinstance(dimensions, list) and dimensions else None
        if not isinstance(inner, list) or not all(isinstance(size, int) and 0 <= size < 1 << 40 for size in inner):
            remedy = "give `shapes`, a workload of the same model, or record with record_shapes=True"
            raise TraceError("the trace holds no shapes of gradients", place=place, remedy=remedy)
        shapes.append(tuple(inner))
    count, dtypes = len(shapes), _dtypes(step)
    parameters = tuple(
        Parameter(f"parameter{index}", shape, dtype or "float32")
        for index, (shape, dtype) in enumerate(zip(reversed(shapes), reversed(dtypes), strict=True))
    )
    how = "shapes from the trace, registration taken as the reverse of arrival; names and buffers unknown"
    return Mapping(parameters, tuple(range(count - 1, -1, -1)), how)


def _dtypes(step: HostStep) -> list[str | None]:
    """Return the type of each arrival's gradient, else what all allreduces sum; None where the trace does not say."""
    summed = {collective.dtype for collective in step.collectives}
    common = summed.pop() if len(summed) == 1 else None
    types = [accumulation.args.get("Input type") for accumulation in step.accumulations]
    own = (dtype_named(inputs[0]) if isinstance(inputs, list) and inputs else None for inputs in types)
    return [dtype or common for dtype in own]


def _with_dtypes(mapping: Mapping, dtypes: Sequence[str | None], source: str) -> Mapping:
    """Return the mapping with the gradients of the types that the trace has."""
    parameters = list(mapping.parameters)
    others = Counter[str]()
    for index, dtype in zip(mapping.order, dtypes, strict=True):
        if dtype is not None and dtype != parameters[index].dtype:
            others[f"{dtype} instead of {parameters[index].dtype}"] += 1
            parameters[index] = replace(parameters[index], dtype=dtype)
    if not others:
        return mapping
    changes = ", ".join(f"{count} of {what}" for what, count in others.items())
    return Mapping(tuple(parameters), mapping.order, f"{mapping.how}; gradients are the trace's: {changes} in {source}")


def _mismatch(buckets: Sequence[tuple[int, int]], order: Sequence[int], parameters: Sequence[Parameter]) -> str | None:
    begin = 0
    for number, (end, elements) in enumerate(buckets):
        held = sum(parameters[index].numel for index in order[begin:end])
        if held != elements:
            return f"allreduce {number} sums {elements:,} elements, arrivals {begin} to {end - 1} hold {held:,}"
        begin = end
    return None if begin == len(order) else f"arrivals from {begin} on are in no allreduce"


_NUMBER, _THREAD = "Sequence number", "Fwd thread id"
_NOT_KNOWN = "when forward needs its parameters is not known, all count as at the start: "


def forward_use_in(
    events: Events, steps: Sequence[HostStep], timeline: TimelineWithoutDdp, mapping: Mapping
) -> tuple[ForwardUse | None, str]:
    """Return when forward first needs each parameter, the median of `steps`, and how that was found.

    A parameter without a gradient counts as one that forward never needs. Where the operator of any other is not in
    forward, as that of a checkpointed layer, which is made in backward, or in a trace without sequence numbers, nothing
    is known.
    """
    starts = [event.start_s for event in events.operators]
    uses = []
    for step in steps:
        forward, backward, end = (
            bisect_left(starts, moment_s) for moment_s in (step.forward_s, step.backward_s, step.end_s)
        )
        numbered = {event.args[_NUMBER]: event for event in events.operators[forward:backward] if _NUMBER in event.args}
        if not numbered:
            return None, _NOT_KNOWN + "no operator has a sequence number"
        operators = _first_readers(events.operators[backward:end], step.accumulations, numbered)
        if missing := operators.count(None):
            what = f"{missing} of {len(operators)} gradients come from operators that are not in forward"
            return None, _NOT_KNOWN + what
        readers = [operator for operator in operators if operator is not None]
        uses.append(_use(step, readers, timeline, mapping))
    return median_use(uses), "when forward needs its parameters is known by the sequence numbers of operators"


def _first_readers(
    backward: Sequence[HostEvent], accumulations: Sequence[HostEvent], numbered: Table[object, HostEvent]
) -> list[HostEvent | None]:
    """Return for each accumulation the operator of forward that first read its parameter, None where it is not there.

    Nodes that were made on another thread than the first have numbers of their own.
    """
    nodes = [event for event in backward if event.name.startswith(NODE) and not event.name.endswith(ACCUMULATE)]
    begun = [node.start_s for node in nodes]
    readers: list[HostEvent | None] = []
    for accumulation in accumulations:
        before = bisect_left(begun, accumulation.start_s)
        node = next((node for node in reversed(nodes[:before]) if node.thread == accumulation.thread), None)
        known = node is not None and node.args.get(_THREAD) == nodes[0].args.get(_THREAD)
        readers.append(numbered.get(node.args.get(_NUMBER)) if node is not None and known else None)
    return readers


def _use(step: HostStep, operators: Sequence[HostEvent], timeline: TimelineWithoutDdp, mapping: Mapping) -> ForwardUse:
    host, device = (np.full(len(mapping.parameters), np.nan) for _ in range(2))
    order = list(mapping.order)
    host[order] = [timeline.moment(each.start_s) - timeline.moment(step.forward_s) for each in operators]
    if not timeline.works:
        return ForwardUse(host.round(9), host.round(9))
    begin_s = timeline.first_start_s(step.forward_s)
    device[order] = [timeline.first_start_s(each.start_s) - begin_s for each in operators]
    return ForwardUse(host.round(9), device.round(9))
