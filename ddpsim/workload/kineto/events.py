"""The events of a Kineto trace: operators and launches on the host, work on the device, and their links.

A trace has thousands of events a step: the time to read it is the time spent on each event, and its memory what is
stored of each, so that only the fields that another file here uses are stored. Times are columns of numbers until all
are known; equal names and arguments are one object.

Start at `Events`, the result, and `_EventTable.take`, which sees every event.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from ddpsim.common.errors import TraceError

_DTYPES = {
    "double": "float64", "float": "float32", "half": "float16", "bfloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "short": "int16", "short int": "int16", "char": "int8", "signed char": "int8",
    "byte": "uint8", "unsigned char": "uint8", "bool": "bool",
}  # fmt: skip


BROADCAST_OPERATORS = {
    "aten::flatten_dense_tensors", "aten::unflatten_dense_tensors", "aten::view", "aten::empty", "aten::cat",
    "aten::narrow", "aten::slice", "aten::as_strided", "aten::copy_", "aten::split", "aten::split_with_sizes",
    "c10d::broadcast_", "record_param_comms", "nccl:broadcast", "gloo:broadcast",
}  # fmt: skip
"""What the broadcast of buffers at the start of forward consists of."""


class HostEvent(NamedTuple):
    """An operator, an annotation or a runtime call, in seconds from the trace's first event."""

    name: str
    start_s: float
    end_s: float
    thread: object
    args: Mapping[str, object]


class DeviceWork(NamedTuple):
    """A kernel, copy or memset on a device stream, with the host's call that launched it, where the trace has it."""

    name: str
    start_s: float
    end_s: float
    stream: str
    size_bytes: int
    launch: HostEvent | None


@dataclass(frozen=True, slots=True)
class Events:
    """These are a trace's events, each list sorted by start.

    Attributes:
        operators: operators and annotations on the host.
        waits: runtime calls in which the host waits for the device.
        works: what the device did.
        origin_s: the first event's time on the clock of the trace.
        processes: what metadata call the processes, `python` or `rank 3`.
        unread: categories of which nothing is read.
    """

    operators: Sequence[HostEvent]
    waits: Sequence[HostEvent]
    works: Sequence[DeviceWork]
    origin_s: float = 0.0
    processes: Sequence[str] = ()
    unread: frozenset[str] = frozenset()


def dtype_named(name: object) -> str | None:
    """Return torch's name of a type as traces spell it (`Float`, `c10::BFloat16`); None of one that is not known."""
    return _DTYPES.get(name.removeprefix("c10::").lower()) if isinstance(name, str) else None


def busy_s(works: Iterable[DeviceWork]) -> float:
    """Return the seconds in which at least one of `works` (any order) was running."""
    total, until = 0.0, -math.inf
    for work in sorted(works, key=lambda work: work.start_s):
        total += max(0.0, work.end_s - max(work.start_s, until))
        until = max(until, work.end_s)
    return total


_DEVICE, _LAUNCH, _OPERATOR = range(3)
_KINDS = {
    "kernel": _DEVICE, "gpu_memcpy": _DEVICE, "gpu_memset": _DEVICE, "cuda_runtime": _LAUNCH, "cuda_driver": _LAUNCH,
    "hip_runtime": _LAUNCH, "cpu_op": _OPERATOR, "user_annotation": _OPERATOR,
    # torch 1.8 to 1.11
    "Kernel": _DEVICE, "Memcpy": _DEVICE, "Memset": _DEVICE, "Runtime": _LAUNCH, "Operator": _OPERATOR,
}  # fmt: skip
_WAITS = (
    "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "hipStreamSynchronize",
    "hipEventSynchronize", "hipDeviceSynchronize", "hipMemcpy", "hipMemcpyWithStream",
)  # fmt: skip
"""Runtime calls, CUDA's and HIP's, in which the host waits for the device."""
_LAUNCHING = ("Launch", "Memcpy", "Memset")
"""In the names of runtime calls that hand work to the device; the others, half of all events, are not used."""
_KEPT = ("Sequence number", "Fwd thread id", "In msg nelems", "dtype", "Group size")
_NOTHING = (None,) * len(_KEPT)
_SHAPES = ("Input Dims", "Input type")
_OLD_SHAPES = "Input dims"
_WITH_SHAPES = ("torch::autograd::AccumulateGrad", "c10d::", "gloo:", "nccl:")
"""Arguments of host events that are read, shapes of those alone whose names begin so: the others fill the memory."""
_NO_ARGS: Mapping[str, object] = {}
_MOST = 1 << 63
"""No time in microseconds and no size in bytes is as large."""
_NUMBERS, _NAMING = (float, int), (int, str)
_make: Any = tuple.__new__
"""Named tuples of a row, without a call for each: there are millions."""


def parse_events(raw: object, place: str) -> Events:
    """Return the events of a trace's `traceEvents`.

    Raises:
        TraceError: not a list of events, or an event without a usable time.
    """
    if not isinstance(raw, list):
        raise TraceError(f"{type(raw).__name__} is not a list of events", place=f"{place}: traceEvents")
    return collect([raw], place)


def collect(batches: Iterable[Sequence[object]], place: str) -> Events:
    """Return a trace's events, which are taken batch by batch: of each no more is kept than `Events` holds.

    Raises:
        TraceError: what is no event, or one without a usable time.
    """
    table, taken = _EventTable(), 0
    for batch in batches:
        table.take(batch, taken, place)
        taken += len(batch)
    return table.events()


@dataclass(slots=True)
class _Column:
    """Events of one kind as they come, their times in microseconds as the trace has them.

    Attributes:
        owners: thread of a host event, stream of a device's.
        others: arguments of an operator, correlation of a launch, bytes and correlation of a device's work.
    """

    names: list[str] = field(default_factory=list)
    starts: array[float] = field(default_factory=lambda: array("d"))
    ends: array[float] = field(default_factory=lambda: array("d"))
    owners: list[Any] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)

    def add(self, name: str, start: float, end: float, owner: object, other: object) -> None:
        """Take one event in."""
        self.names.append(name)
        self.starts.append(start)
        self.ends.append(end)
        self.owners.append(owner)
        self.others.append(other)

    def shift(self, origin: float, ties: int = 0) -> Iterator[tuple[str, float, float, Any, Any]]:
        """Yield name, start, end, owner and the rest, in seconds from `origin`.

        They come by start where `ties` is not 0: of those that start at once the longer first at -1, last at 1.
        """
        starts, ends = ((np.array(times) - origin) / 1e6 for times in (self.starts, self.ends))
        order = np.lexsort((ties * ends, starts)) if ties else np.arange(len(starts))
        names, owners, others = self.names, self.owners, self.others
        times = starts[order].data, ends[order].data
        return ((names[n], start, end, owners[n], others[n]) for n, start, end in zip(order.data, *times, strict=True))


@dataclass(slots=True)
class _EventTable:
    columns: tuple[_Column, _Column, _Column] = field(default_factory=lambda: (_Column(), _Column(), _Column()))
    shared: dict[object, Any] = field(default_factory=dict)
    numbered: dict[tuple[object, ...], Mapping[str, object]] = field(default_factory=dict)
    wanted: dict[str, bool] = field(default_factory=dict)
    outer: dict[object, tuple[float, float]] = field(default_factory=dict)
    processes: dict[str, None] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)

    def take(self, events: Sequence[object], first: int, place: str) -> None:
        """Add events, of which the first is number `first` of the trace, without the arguments that are not used."""
        # This loop sees every event, millions in a long trace, and is most of what reading costs: methods are bound to
        # local names, kinds of events branch here rather than in functions of their own, and equal texts are one
        # object.
        share, wanted = self.shared.setdefault, self.wanted
        kernels, launches, operators = (column.add for column in self.columns)
        for number, event in enumerate(events, first):
            if not isinstance(event, dict):
                raise TraceError(f"{event!r} is not an event", place=f"{place}: traceEvents.{number}")
            category = event.get("cat")
            if not isinstance(category, str) or category not in _KINDS or event.get("ph") != "X":
                if event.get("ph") == "M":
                    named = event.get("args")
                    if event.get("name") in ("process_name", "process_labels") and isinstance(named, dict):
                        self.processes.update((said, None) for said in named.values() if isinstance(said, str))
                elif isinstance(category, str):
                    self.unread.add(category)
                continue
            start, duration = event.get("ts"), event.get("dur")
            if not (_is_amount(start) and _is_amount(duration)):
                what = f"ts {start!r}, dur {duration!r} are not times in microseconds"
                raise TraceError(what, place=f"{place}: traceEvents.{number}")
            kind, name, args, thread = _KINDS[category], event.get("name"), event.get("args"), event.get("tid")
            name = share(name, name) if isinstance(name, str) else str(name)
            if not isinstance(args, dict):
                args = _NO_ARGS
            if type(thread) in _NAMING:
                thread = share(thread, thread)
            elif isinstance(thread, list | dict):
                thread = str(thread)
            if kind == _OPERATOR:
                arguments = self._select_arguments(name, args)
                if arguments or not self._is_inner(name, start, start + duration, thread):
                    operators(name, start, start + duration, thread, arguments)
            elif kind == _DEVICE:
                size, stream = args.get("bytes", 0), str(args.get("stream", thread))
                rest = int(size) if _is_amount(size) else 0, _correlation(args)
                kernels(name, start, start + duration, share(stream, stream), rest)
            else:
                if name not in wanted:
                    # The call launches work or waits for it.
                    wanted[name] = name in _WAITS or any(word in name for word in _LAUNCHING)
                if wanted[name]:
                    launches(name, start, start + duration, thread, _correlation(args))

    def _is_inner(self, name: str, start: float, end: float, thread: object) -> bool:
        """Whether an operator runs inside the one before it on its thread: half of all do, and they are left out.

        The broadcast of buffers is recognised by its inner operators, so that those stay.
        """
        if not name.startswith("aten::"):
            return False
        begun, over = self.outer.get(thread, (0.0, 0.0))
        if begun <= start and end <= over:
            return True
        if name not in BROADCAST_OPERATORS:
            self.outer[thread] = start, end
        return False

    def _select_arguments(self, name: str, args: Mapping[str, object]) -> Mapping[str, object]:
        """Return the arguments that are read; operators, and nodes that undo them, share those of their number."""
        if name.startswith(_WITH_SHAPES):
            arguments = {key: args[key] for key in (*_KEPT, *_SHAPES) if key in args}
            return arguments | {"Input Dims": args[_OLD_SHAPES]} if _OLD_SHAPES in args else arguments
        values = tuple(map(args.get, _KEPT))
        if values == _NOTHING:
            return _NO_ARGS
        try:
            known = self.numbered.get(values)
        except TypeError:  # a list among them, of another writer
            return {key: args[key] for key in _KEPT if key in args}
        if known is None:
            known = self.numbered[values] = {key: args[key] for key in _KEPT if key in args}
        return known

    def events(self) -> Events:
        """Return the events on the clock that begins with the first."""
        kernels, launches, operators = self.columns
        origin = min((min(column.starts) for column in self.columns if column.starts), default=0.0)
        used = {correlation for _, correlation in kernels.others} - {None}
        by_correlation: dict[int, HostEvent] = {}
        waits = []
        for name, start_s, end_s, thread, correlation in launches.shift(origin):
            if correlation in used or name in _WAITS:
                launch = _make(HostEvent, (name, start_s, end_s, thread, _NO_ARGS))
                if name in _WAITS:
                    waits.append(launch)
                if correlation is not None:
                    by_correlation[correlation] = launch
        works = [
            _make(DeviceWork, (name, start_s, end_s, stream, size_bytes, by_correlation.get(correlation)))
            for name, start_s, end_s, stream, (size_bytes, correlation) in kernels.shift(origin, 1)
        ]
        waits.sort(key=lambda event: (event.start_s, -event.end_s))
        moved = [_make(HostEvent, row) for row in operators.shift(origin, -1)]
        return Events(moved, waits, works, origin / 1e6, tuple(self.processes), frozenset(self.unread))


def _correlation(args: Mapping[str, object]) -> int | None:
    number = args.get("correlation")
    return number if isinstance(number, int) else None


def _is_amount(value: object) -> TypeGuard[float]:
    return type(value) in _NUMBERS and 0 <= value < _MOST  # type: ignore[operator]
