"""The devices of a rank that has several: which part of forward each computes, and what passes between them.

Devices compute in turn: forward on the first, which copies its activations to the second, and so on; backward the other
way round, with the gradients of those activations. Whose gradient a parameter's is, its `device` says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import FrozenParameter
from ddpsim.common.documents.fields import WRITTEN, Amount, Index, Key, Text
from ddpsim.common.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class DevicePart:
    """What one device of a rank computes of forward.

    Attributes:
        device: its name, as parameters have it.
        host_s: seconds from the start of forward until the host has launched its part.
        device_s: seconds from the start of forward until its part has been computed, by what devices are busy: copies
            between them are left out.
        sent_bytes: of the activations that the next device gets, whose gradient is as large; 0 of the last.
    """

    device: Text
    host_s: Annotated[Amount, Key(("forward_until_s", "host"))]
    device_s: Annotated[Amount, Key(("forward_until_s", "device"))]
    sent_bytes: Annotated[Index, WRITTEN] = 0


class NamedOnDevice(Protocol):
    """A parameter or buffer has a name, and may name its device."""

    @property
    def name(self) -> str:
        """Its full name."""

    @property
    def device(self) -> str | None:
        """The device that it is on; None where that is not known."""


def check_devices_told(name: str, parts: Sequence[DevicePart], parameters: Sequence[Parameter]) -> None:
    """Refuse the workload `name` where its parameters are on several devices and its `parts` are missing.

    Raises:
        WorkloadError: parameters on several devices, without parts.
    """
    used = list(dict.fromkeys(each.device for each in parameters))
    if len(used) > 1 and not parts:
        what = f"{name} has parameters on {', '.join(used)}, and does not say what of forward each computes"
        remedy = "add `devices` to its file, or cut a step of one device: `ddpsim workload split`"
        raise WorkloadError(what, place="parameters, device", remedy=remedy)


def check_parts(parts: Sequence[DevicePart], parameters: Sequence[Parameter], most_s: float) -> None:
    """Hold the devices of a rank that has several against its parameters.

    Args:
        most_s: seconds at most of a time.

    Raises:
        WorkloadError: a single device, one that is named twice or has no parameter, a parameter on another, a time that
            is negative, above `most_s` or before that of the device before, or bytes where nothing is sent, or none
            where something is.
    """
    names, used = [part.device for part in parts], {parameter.device for parameter in parameters}
    if len(parts) == 1:
        raise WorkloadError("lists a single device", place="devices", remedy="leave it out")
    for number, part in enumerate(parts):
        place = f"devices.{number}"
        if part.device in names[:number]:
            remedy = "name each once: a forward that comes back to a device is not described"
            raise WorkloadError(f"{part.device!r} is named twice", place=f"{place}.device", remedy=remedy)
        if part.device not in used:
            what, remedy = f"no parameter is on {part.device!r}", f"use {', '.join(sorted(used))}"
            raise WorkloadError(what, place=f"{place}.device", remedy=remedy)
        for name in ("host_s", "device_s"):
            seconds, before = getattr(part, name), getattr(parts[number - 1], name) if number else 0.0
            if not (math.isfinite(seconds) and before <= seconds <= most_s):
                what = f"{seconds!r} is not a time in seconds from {before!r} s on"
                raise WorkloadError(what, place=f"{place}.{name}", remedy="give moments of forward, ascending")
        if (part.sent_bytes > 0) != (number + 1 < len(parts)):
            what = f"{part.sent_bytes} bytes are sent to {'the next device' if number + 1 < len(parts) else 'none'}"
            remedy = "give the bytes of the activations that pass, 0 of the last device"
            raise WorkloadError(what, place=f"{place}.sent_bytes", remedy=remedy)
    for number, parameter in enumerate(parameters):
        if parameter.device not in names:
            what = f"{parameter.name} is on {parameter.device!r}, which `devices` does not list"
            raise WorkloadError(what, place=f"parameters.{number}.device", remedy=f"use {', '.join(names)}")


def device_numbers(parts: Sequence[DevicePart], parameters: Sequence[Parameter]) -> tuple[int, ...]:
    """Return by registration index the number of each parameter's device; 0 of all where there is one."""
    number = {part.device: place for place, part in enumerate(parts)}
    return tuple(number.get(parameter.device, 0) for parameter in parameters)


def buffer_devices(
    parts: Sequence[DevicePart], parameters: Sequence[Parameter], buffers: Sequence[NamedOnDevice]
) -> tuple[int, ...]:
    """Return the number of each buffer's device: the one it names, else that of the parameters nearest by their name.

    >>> parts = [DevicePart("cuda:0", 1.0, 1.0, 4), DevicePart("cuda:1", 2.0, 2.0)]
    >>> on = [Parameter(name, (1,), device=device) for name, device in (("a.w", "cuda:0"), ("b.w", "cuda:1"))]
    >>> buffer_devices(parts, on, [Parameter("b.mean", (1,), device=None)])
    (1,)
    """
    if len(parts) <= 1:  # of most workloads; comparing names takes longer than the rest of a simulation
        return (0,) * len(buffers)
    numbers, of_name = device_numbers(parts, parameters), {part.device: place for place, part in enumerate(parts)}
    return tuple(
        of_name[each.device] if each.device in of_name else numbers[find_nearest(each, parameters)] for each in buffers
    )


def find_nearest(named: NamedOnDevice, parameters: Sequence[Parameter]) -> int:
    """Return the index of the parameter that is nearest to a buffer or frozen parameter.

    It is one with whose name it has most components in common; of several the one that a frozen parameter is registered
    next to, else the first.

    >>> trained = [Parameter(name, (1,)) for name in ("h.0.lora", "h.1.lora")]
    >>> [find_nearest(FrozenParameter(name, (1,), before=before), trained) for name, before in (("h.0.b", 1), ("o", 2))]
    [0, 1]
    """
    words = named.name.split(".")
    shared = [_count_shared(words, parameter.name.split(".")) for parameter in parameters]
    place = named.before - 0.5 if isinstance(named, FrozenParameter) else 0.0
    return max(range(len(shared)), key=lambda index: (shared[index], -abs(index - place)))


def _count_shared(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many components two names begin with in common."""
    common = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        common += 1
    return common


def part_shares(parts: Sequence[DevicePart], host_s: float, device_s: float) -> list[tuple[float, float, DevicePart]]:
    """Return what shares of forward are over, on the host and on devices, where each part but the last ends.

    Args:
        host_s, device_s: what forward takes on either clock.
    """

    def share(moment_s: float, whole_s: float) -> float:
        return min(moment_s / whole_s, 1.0) if whole_s > 0 else 1.0

    return [(share(part.host_s, host_s), share(part.device_s, device_s), part) for part in parts[:-1]]
