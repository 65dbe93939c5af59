"""The events of a Kineto trace as data: operators and launches on the host, work on the device, and their links."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ddpsim.errors import TraceError

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver")
_OPERATOR = ("cpu_op", "user_annotation")
_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")
_MOST = 1 << 63
"""No time in microseconds and no size in bytes is as large."""
_DTYPES = {
    "double": "float64", "float": "float32", "half": "float16", "bfloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "short": "int16", "short int": "int16", "char": "int8", "signed char": "int8",
    "byte": "uint8", "unsigned char": "uint8", "bool": "bool",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HostEvent:
    """It is an operator, an annotation or a runtime call, in seconds from the trace's first event."""

    name: str
    start_s: float
    end_s: float
    thread: object
    args: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DeviceWork:
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
    """

    operators: Sequence[HostEvent]
    waits: Sequence[HostEvent]
    works: Sequence[DeviceWork]


def parse_events(raw: object, place: str) -> Events:
    """Return the events of a trace's `traceEvents`.

    Raises:
        TraceError: not a list of events, or an event without a usable time.
    """
    if not isinstance(raw, list):
        raise TraceError(f"{type(raw).__name__} is not a list of events", place=f"{place}: traceEvents")
    found: dict[str, list[tuple[float, float, dict[str, object]]]] = {}
    for number, event in enumerate(raw):
        if not isinstance(event, dict):
            raise TraceError(f"{event!r} is not an event", place=f"{place}: traceEvents.{number}")
        if event.get("ph") == "X" and (category := event.get("cat")) in (*_DEVICE, *_LAUNCH, *_OPERATOR):
            start, duration = event.get("ts"), event.get("dur")
            if not _is_amount(start) or not _is_amount(duration):
                what = f"ts {start!r}, dur {duration!r} are not times in microseconds"
                raise TraceError(what, place=f"{place}: traceEvents.{number}")
            found.setdefault(str(category), []).append((float(start), float(duration), event))  # type: ignore[arg-type]
    origin = min((start for entries in found.values() for start, _, _ in entries), default=0.0)

    def host(categories: Iterable[str]) -> list[HostEvent]:
        entries = [entry for category in categories for entry in found.get(category, ())]
        events = [
            HostEvent(str(e.get("name")), (t - origin) / 1e6, (t - origin + d) / 1e6, e.get("tid"), _args(e))
            for t, d, e in entries
        ]
        return sorted(events, key=lambda event: (event.start_s, -event.end_s))

    launches = host(_LAUNCH)
    by_correlation: dict[int | None, HostEvent] = {
        n: event for event in launches if (n := _correlation(event.args)) is not None
    }
    works = [
        DeviceWork(
            str(e.get("name")),
            (t - origin) / 1e6,
            (t - origin + d) / 1e6,
            str(_args(e).get("stream", e.get("tid"))),
            int(size) if _is_amount(size := _args(e).get("bytes", 0)) else 0,  # type: ignore[call-overload]
            by_correlation.get(_correlation(_args(e))),
        )
        for category in _DEVICE
        for t, d, e in found.get(category, ())
    ]
    waits = [event for event in launches if event.name in _WAITS]
    return Events(host(_OPERATOR), waits, sorted(works, key=lambda work: (work.start_s, work.end_s)))


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
