"""How long the device was busy, and the host waited for it, in phases that annotations mark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpsim.workload.kineto.events import DeviceWork, busy_s, parse_events


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
