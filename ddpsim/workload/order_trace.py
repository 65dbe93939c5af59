"""Order traces: iterations of several ranks side by side, in which the order of gradients changes.

A workload is drawn from; an order trace is replayed: iteration k of every rank is the same step of the same training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.common.documents.fields import Bounds, Count, Index, Text, document_of
from ddpsim.common.documents.records import read_as
from ddpsim.common.errors import WorkloadError
from ddpsim.common.files import display_name, encode_text, json_text, read_json, write_whole
from ddpsim.workload.profile import Phase, Workload
from ddpsim.workload.times import Seconds

Context = str | int | None

_UNIT_S = 1e-6
"""Times are whole microseconds: what a clock's reading on a CPU is worth."""
_REMEDY = "record it again with `python -m ddpexec record-orders`"


@dataclass(frozen=True, slots=True)
class OrderTrace:
    """The same iterations of one training on every rank.

    Attributes:
        workloads: by rank; all of the same parameters, with as many iterations each.
        contexts: by rank and iteration, what was known of the batch before forward (a task, a length); None where
            nothing was.
        provenance: how it came about: what was recorded, or the statistics it was drawn with.

    Raises:
        WorkloadError: no rank, or ranks that differ in parameters or in how many iterations they have.
    """

    workloads: tuple[Workload, ...]
    contexts: tuple[tuple[Context, ...], ...]
    provenance: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.workloads:
            raise WorkloadError("an order trace needs at least one rank", place="ranks")
        first = self.workloads[0]
        for rank, workload in enumerate(self.workloads):
            place = f"ranks.{rank}"
            if workload.parameters != first.parameters:
                raise WorkloadError("is of another model than rank 0", place=place, remedy=_REMEDY)
            if workload.iterations != first.iterations:
                what = f"has {workload.iterations} iterations, rank 0 {first.iterations}"
                raise WorkloadError(what, place=place, remedy=_REMEDY)
        if [len(row) for row in self.contexts] != [first.iterations] * len(self.workloads):
            raise WorkloadError("contexts are not one an iteration and rank", place="contexts", remedy=_REMEDY)

    def __repr__(self) -> str:
        return f"<OrderTrace: {self.name}, {self.ranks} ranks, {self.iterations} iterations>"

    @property
    def name(self) -> str:
        """What was trained."""
        return self.workloads[0].name

    @property
    def ranks(self) -> int:
        """How many ranks were recorded."""
        return len(self.workloads)

    @property
    def iterations(self) -> int:
        """How many iterations each rank has."""
        return self.workloads[0].iterations

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The model's, in registration order."""
        return self.workloads[0].parameters

    def first(self, iterations: int) -> OrderTrace:
        """Return the trace of its first iterations; all of them where it has no more."""
        if iterations >= self.iterations:
            return self
        workloads = tuple(each.pick(slice(iterations)) for each in self.workloads)
        return replace(self, workloads=workloads, contexts=tuple(row[:iterations] for row in self.contexts))

    @property
    def misses_gradients(self) -> bool:
        """Whether some iteration of some rank brings some parameter no gradient, as torch must be told."""
        return any(bool(np.isnan(workload.gradient_hook_s).any()) for workload in self.workloads)


@dataclass(frozen=True, slots=True)
class _RankEntry:
    """One rank's iterations, in microseconds; `order` counts the file's `orders`, `gaps` are from hook to hook."""

    forward: tuple[Index, ...]
    tail: tuple[Index, ...]
    optimizer: tuple[Index, ...]
    order: tuple[Index, ...]
    gaps: tuple[tuple[Index, ...], ...]
    context: tuple[Context, ...]


@dataclass(frozen=True, slots=True)
class OrderTraceFile:
    """A whole file; the gradients of an iteration come in one of `orders`, registration indices."""

    SCHEMA: ClassVar = "ddpsim.orders/1"
    KIND: ClassVar = "order trace"

    name: Text
    device: Text
    batch_size: Count
    threads: Count | None
    parameters: tuple[Parameter, ...]
    ranks: Annotated[tuple[_RankEntry, ...], Bounds(min_length=1)]
    orders: tuple[tuple[Index, ...], ...]
    provenance: Mapping[str, object]


def load_order_trace(path: str | Path) -> OrderTrace:
    """Return the order trace in a file, `.json` or `.json.gz`.

    Raises:
        WorkloadError: truncated, not JSON, another schema, a key missing or of the wrong kind, ranks that disagree.
    """
    place = display_name(path)
    read = read_as(
        OrderTraceFile,
        read_json(Path(path), WorkloadError, _REMEDY),
        place,
        WorkloadError,
        _REMEDY,
    )
    try:
        _check_orders(read)
        workloads = tuple(_workload(read, number) for number in range(len(read.ranks)))
        return OrderTrace(workloads, tuple(rank.context for rank in read.ranks), read.provenance)
    except WorkloadError as error:
        error.at(place)


def save_order_trace(trace: OrderTrace, path: str | Path) -> None:
    """Write `trace` to `path`, gzipped where it ends in `.gz`; the same trace gives the same bytes."""
    write_whole(path, encode_text(json_text(order_trace_document(trace)), path))


def order_trace_document(trace: OrderTrace) -> dict[str, object]:
    """Return `trace` as the JSON document `ddpsim.orders/1`."""
    orders: dict[tuple[int, ...], int] = {}
    first = trace.workloads[0]
    pairs = zip(trace.workloads, trace.contexts, strict=True)
    ranks = tuple(_rank_entry(workload, contexts, orders) for workload, contexts in pairs)
    numbers = first.batch_size, first.threads
    document: dict[str, object] = document_of(
        OrderTraceFile(
            trace.name, first.device_label, *numbers, trace.parameters, ranks, tuple(orders), trace.provenance
        )
    )
    return document


def _rank_entry(workload: Workload, contexts: Sequence[Context], orders: dict[tuple[int, ...], int]) -> _RankEntry:
    hooks = workload.gradient_hook_s / _UNIT_S
    numbers, gaps, tails = [], [], []
    for iteration, row in enumerate(hooks):
        order = tuple(index for index in workload.arrival_order(iteration) if not np.isnan(row[index]))
        numbers.append(orders.setdefault(order, len(orders)))
        gaps.append(_round_up(np.diff(row[list(order)], prepend=0.0)))
        tails.append(max(0, round(float(workload.backward.host_s[iteration]) / _UNIT_S - sum(gaps[-1]))))
    forward, optimizer = (_round_up(phase.host_s / _UNIT_S) for phase in (workload.forward, workload.optimizer))
    return _RankEntry(forward, tuple(tails), optimizer, tuple(numbers), tuple(gaps), tuple(contexts))


def _round_up(times: Seconds) -> tuple[int, ...]:
    """Return times rounded to at least one unit, so that no two gradients come at once."""
    return tuple(max(1, round(time)) for time in times.tolist())


def _check_orders(read: OrderTraceFile) -> None:
    count = len(read.parameters)
    for number, order in enumerate(read.orders):
        if len(set(order)) != len(order) or any(index >= count for index in order):
            what = f"is no order of some of {count} parameters, each at most once"
            raise WorkloadError(what, place=f"orders.{number}", remedy=_REMEDY)
    for rank, entry in enumerate(read.ranks):
        if any(number >= len(read.orders) for number in entry.order):
            raise WorkloadError(f"counts beyond {len(read.orders)} orders", place=f"ranks.{rank}.order", remedy=_REMEDY)
        lengths = {len(each) for each in (entry.forward, entry.tail, entry.optimizer, entry.order, entry.gaps)}
        if len(lengths) != 1:
            raise WorkloadError("its lists are not of one length", place=f"ranks.{rank}", remedy=_REMEDY)
        for iteration, (number, gaps) in enumerate(zip(entry.order, entry.gaps, strict=True)):
            if len(gaps) != len(read.orders[number]):
                what = f"{len(gaps)} times for {len(read.orders[number])} gradients"
                raise WorkloadError(what, place=f"ranks.{rank}.gaps.{iteration}", remedy=_REMEDY)


def _workload(read: OrderTraceFile, number: int) -> Workload:
    entry = read.ranks[number]
    hooks = np.full((len(entry.order), len(read.parameters)), np.nan)
    for iteration, (order, gaps) in enumerate(zip(entry.order, entry.gaps, strict=True)):
        hooks[iteration, list(read.orders[order])] = np.cumsum(gaps) * _UNIT_S
    ends = np.array([sum(gaps) for gaps in entry.gaps]) + np.array(entry.tail)
    phases = [_phase(times) for times in (entry.forward, ends, entry.optimizer)]
    return Workload(
        name=read.name,
        device=read.device,
        precision="fp32",
        batch_size=read.batch_size,
        threads=read.threads,
        estimated=False,
        parameters=read.parameters,
        buffers=(),
        forward=phases[0],
        backward=phases[1],
        optimizer=phases[2],
        gradient_hook_s=hooks,
        gradient_ready_s=hooks.copy(),
        provenance=read.provenance,
    )


def _phase(times: Sequence[int] | Seconds) -> Phase:
    seconds = np.asarray(times, dtype=np.float64) * _UNIT_S
    return Phase(seconds, seconds.copy())
