"""Which parameter each gradient of a trace belongs to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpsim.bucketing import Parameter
from ddpsim.errors import TraceError, WorkloadError
from ddpsim.workload.kineto.events import dtype_named
from ddpsim.workload.kineto.steps import HostStep
from ddpsim.workload.profile import Workload


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
    buckets = _buckets(step)
    for how, order in orders.items():
        if buckets and _mismatch(buckets, order, shapes.parameters) is None:
            confirmed = f"confirmed by {len(buckets)} allreduces of {', '.join(f'{n:,}' for _, n in buckets)} elements"
            return Mapping(shapes.parameters, tuple(order), f"arrivals mapped {how}, {confirmed}")
    how = f"arrivals mapped {next(iter(orders))}"
    if not buckets:
        return Mapping(shapes.parameters, tuple(first), f"{how}; no allreduce in the trace confirms it")
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
    found = ", ".join(f"{count} of {what}" for what, count in others.items())
    return Mapping(tuple(parameters), mapping.order, f"{mapping.how}; gradients are the trace's: {found} in {source}")


def _buckets(step: HostStep) -> list[tuple[int, int]]:
    """Return (arrivals by then, elements) of each allreduce whose size the trace gives."""
    return [(collective.after, collective.elements) for collective in step.collectives if collective.elements]


def _mismatch(buckets: Sequence[tuple[int, int]], order: Sequence[int], parameters: Sequence[Parameter]) -> str | None:
    begin = 0
    for number, (end, elements) in enumerate(buckets):
        held = sum(parameters[index].numel for index in order[begin:end])
        if held != elements:
            return f"allreduce {number} sums {elements:,} elements, arrivals {begin} to {end - 1} hold {held:,}"
        begin = end
    return None if begin == len(order) else f"arrivals from {begin} on are in no allreduce"
