"""The events of a Kineto trace as data: operators and launches on the host, work on the device, and their links."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_DTYPES = {
    "double": "float64", "float": "float32", "half": "float16", "bfloat16": "bfloat16", "long": "int64",
    "long int": "int64", "int": "int32", "short": "int16", "short int": "int16", "char": "int8", "signed char": "int8",
    "byte": "uint8", "unsigned char": "uint8", "bool": "bool",
}  # fmt: skip


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
