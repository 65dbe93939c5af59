"""The events of a Kineto trace as data: operators and launches on the host, work on the device, and their links."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from ddpsim.errors import TraceError

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver")
_OPERATOR = ("cpu_op", "user_annotation")
_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
_TAKEN = (*_DEVICE, *_LAUNCH, *_OPERATOR)
_KEPT = ("Sequence number", "Fwd thread id", "In msg nelems", "dtype")
_NOTHING = (None,) * len(_KEPT)
_SHAPES = ("Input Dims", "Input type")
_WITH_SHAPES = ("torch::autograd::AccumulateGrad", "c10d::", "gloo:", "nccl:")
"""Arguments of host events that are read, shapes of those alone whose names begin so: the others fill the memory."""
_NO_ARGS: Mapping[str, object] = {}
_LAUNCHING = ("Launch", "Memcpy", "Memset")
"""In the names of runtime calls that hand work to the device; the others are half of all, and nobody looks at them."""
_MOST = 1 << 63
"""No time in microseconds and no size in bytes is as large."""
_DTYPES = {
    "double": "float64", "float": "float32", "half": "float16", "bfloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "short": "int16", "short int": "int16", "char": "int8", "signed char": "int8",
    "byte": "uint8", "unsigned char": "uint8", "bool": "bool",
}  # fmt: skip


class HostEvent(NamedTuple):
    """It is an operator, an annotation or a runtime call, in seconds from the trace's first event."""

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
    """

    operators: Sequence[HostEvent]
    waits: Sequence[HostEvent]
    works: Sequence[DeviceWork]
    origin_s: float = 0.0


def parse_events(raw: object, place: str) -> Events:
    """Return the events of a trace's `traceEvents`.

    Raises:
        TraceError: not a list of events, or an event without a usable time.
    """
    if not isinstance(raw, list):
        raise TraceError(f"{type(raw).__name__} is not a list of events", place=f"{place}: traceEvents")
    return collect(raw, place)


def collect(raw: Iterable[object], place: str) -> Events:
    """Return a trace's events, which are taken one by one: of each no more is kept than `Events` holds.

    Raises:
        TraceError: what is no event, or one without a usable time.
    """
    table = _Table()
    for number, event in enumerate(raw):
        if not isinstance(event, dict):
            raise TraceError(f"{event!r} is not an event", place=f"{place}: traceEvents.{number}")
        if event.get("ph") == "X" and event.get("cat") in _TAKEN:
            start, duration = event.get("ts"), event.get("dur")
            if not _is_amount(start) or not _is_amount(duration):
                what = f"ts {start!r}, dur {duration!r} are not times in microseconds"
                raise TraceError(what, place=f"{place}: traceEvents.{number}")
            table.add(event, float(start), float(duration))  # type: ignore[arg-type]
    return table.events()


@dataclass(slots=True)
class _Table:
    """It holds events as they come, in microseconds as the trace has them."""

    operators: list[HostEvent] = field(default_factory=list)
    launches: list[tuple[str, float, float, object, int | None]] = field(default_factory=list)
    works: list[tuple[str, float, float, str, int, int | None]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    threads: dict[int | str, int | str] = field(default_factory=dict)
    numbered: dict[tuple[object, ...], Mapping[str, object]] = field(default_factory=dict)

    def add(self, event: Mapping[str, object], start: float, duration: float) -> None:
        """Take an event in, without the arguments that nobody reads."""
        name, args, category = str(event.get("name")), _args(event), event["cat"]
        name = self.names.setdefault(name, name)
        if category in _DEVICE:
            size = args.get("bytes", 0)
            stream = str(args.get("stream", event.get("tid")))
            size_bytes = int(size) if _is_amount(size) else 0  # type: ignore[call-overload]
            stream = self.names.setdefault(stream, stream)
            self.works.append((name, start, start + duration, stream, size_bytes, _correlation(args)))
        elif category in _LAUNCH:
            if name in _WAITS or any(word in name for word in _LAUNCHING):
                self.launches.append((name, start, start + duration, self._thread(event), _correlation(args)))
        else:
            self.operators.append(HostEvent(name, start, start + duration, self._thread(event), self._kept(name, args)))

    def _thread(self, event: Mapping[str, object]) -> object:
        """Return the event's thread, one object for each."""
        thread = event.get("tid")
        return self.threads.setdefault(thread, thread) if isinstance(thread, int | str) else thread

    def _kept(self, name: str, args: Mapping[str, object]) -> Mapping[str, object]:
        """Return the arguments that are read; operators, and nodes that undo them, share those of their number."""
        if name.startswith(_WITH_SHAPES):
            return {key: args[key] for key in (*_KEPT, *_SHAPES) if key in args}
        found = tuple(value for key in _KEPT if isinstance(value := args.get(key), int | str | None))
        if len(found) < len(_KEPT):
            return {key: args[key] for key in _KEPT if key in args}
        if found == _NOTHING:
            return _NO_ARGS
        known = self.numbered.get(found)
        if known is None:
            known = self.numbered[found] = {key: args[key] for key in _KEPT if key in args}
        return known

    def events(self) -> Events:
        """Return the events on the clock that begins with the first; the table is empty then."""
        held: tuple[Sequence[tuple[Any, ...]], ...] = (self.operators, self.launches, self.works)
        first = min(min((event[1] for event in each), default=math.inf) for each in held)
        origin = 0.0 if first == math.inf else first
        used = {work[5] for work in self.works} - {None}
        by_correlation: dict[int, HostEvent] = {}
        waits = []
        while self.launches:
            name, start, end, thread, number = self.launches.pop()
            if number in used or name in _WAITS:
                made = HostEvent(name, (start - origin) / 1e6, (end - origin) / 1e6, thread, _NO_ARGS)
                if name in _WAITS:
                    waits.append(made)
                if number is not None:
                    by_correlation.setdefault(number, made)
        works = cast("list[DeviceWork]", self.works)
        for index, (name, start, end, stream, size_bytes, number) in enumerate(self.works):
            launch = None if number is None else by_correlation.get(number)
            works[index] = DeviceWork(name, (start - origin) / 1e6, (end - origin) / 1e6, stream, size_bytes, launch)
        waits.sort(key=lambda event: (event.start_s, -event.end_s))
        works.sort(key=lambda work: (work.start_s, work.end_s))
        return Events(_moved(self.operators, origin), waits, works, origin / 1e6)


def _moved(events: list[HostEvent], origin: float) -> list[HostEvent]:
    """Move events of microseconds to seconds from `origin`, and sort them by start; the list itself is changed."""
    for index, (name, start, end, thread, args) in enumerate(events):
        events[index] = HostEvent(name, (start - origin) / 1e6, (end - origin) / 1e6, thread, args)
    events.sort(key=lambda event: (event.start_s, -event.end_s))
    return events


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


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Means over the marked iterations, by phase (`forward`, `backward`, `optimizer`).

    Attributes:
        busy_s: seconds the device worked on what the phase launched.
        waited_s: seconds the host waited for the device in the phase.
        synchronises: as in `Workload`.
    """

    busy_s: Mapping[str, float]
    waited_s: Mapping[str, float]
    synchronises: tuple[str, ...]


@dataclass(slots=True)
class _Window:
    phase: str
    start_s: float
    end_s: float
    works: list[DeviceWork] = field(default_factory=list)
    waited_s: float = 0.0


def device_use(raw: object, prefix: str) -> DeviceUse:
    """Return the device's use in the phases marked by annotations `prefix + phase`.

    Work belongs to the phase in which the host launched it, from whichever thread.
    """
    events = parse_events(raw, "profile")
    windows = [
        _Window(event.name.removeprefix(prefix), event.start_s, event.end_s)
        for event in events.operators
        if event.name.startswith(prefix)
    ]
    starts = [window.start_s for window in windows]

    def window_at(moment_s: float) -> _Window | None:
        index = bisect_right(starts, moment_s) - 1
        return windows[index] if index >= 0 and moment_s <= windows[index].end_s else None

    for work in events.works:
        if work.launch is not None and (window := window_at(work.launch.start_s)) is not None:
            window.works.append(work)
    for wait in events.waits:
        if (window := window_at(wait.start_s)) is not None:
            window.waited_s += wait.end_s - wait.start_s
    phases = ("forward", "backward", "optimizer")
    of = {phase: [window for window in windows if window.phase == phase] for phase in phases}
    waits = [phase for phase in phases if any(window.waited_s > 0 for window in of[phase])]
    return DeviceUse(
        {phase: sum(busy_s(w.works) for w in of[phase]) / max(len(of[phase]), 1) for phase in phases},
        {phase: sum(w.waited_s for w in of[phase]) / max(len(of[phase]), 1) for phase in phases},
        tuple(f"after_{phase}" for phase in waits),
    )


def _args(event: Mapping[str, object]) -> Mapping[str, object]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _correlation(args: Mapping[str, object]) -> int | None:
    number = args.get("correlation")
    return number if isinstance(number, int) else None


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST
