"""Stamps of a captured step, on one GPU or several: host times with CUDA events, and the copies between devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ddpexec.timing.clock import Clock, CudaClock
from ddpexec.timing.waiting import time_between_events
from ddpsim.common.errors import WorkloadError
from ddpsim.simulation.jobs.device_split import Members, put_on_devices
from ddpsim.workload import Phase, Workload
from ddpsim.workload.profile import ForwardUse

NANOSECOND = 9
"""Decimals of seconds that files keep: clocks tell no more."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A moment: seconds on the host's clock, and the place in the device's stream."""

    host_s: float
    event: torch.cuda.Event | None

    def device_since(self, start: Stamp) -> float:
        """Return seconds on the device since `start`; on a CPU the host's."""
        if self.event is None or start.event is None:
            return self.host_s - start.host_s
        return float(start.event.elapsed_time(self.event)) / 1e3


Pair = tuple[torch.device, torch.device]
"""From which device to which."""

COPIES = 10
"""Copies that are timed between two GPUs, of which the median counts; chosen by hand."""


def check_devices(devices: Sequence[torch.device]) -> None:
    """Refuse a module that is on several devices which are not all GPUs.

    Raises:
        WorkloadError: it is.
    """
    if len(devices) > 1 and any(device.type != "cuda" for device in devices):
        what = f"the module is on {', '.join(map(str, devices))}"
        raise WorkloadError(what, place="Capture", remedy="put it on one device, or on GPUs: several are GPUs' alone")


@dataclass(frozen=True, slots=True)
class DevicesStamp(Stamp):
    """A moment at which all of several GPUs had come so far: what they compute in turn is over then.

    Attributes:
        moments: one a GPU.
        clocks: theirs, in the same order.
    """

    moments: Sequence[Any] = ()
    clocks: Sequence[Clock] = ()

    @property
    def device_s(self) -> float:
        """When the last GPU was there, on the host's clock."""
        return max(clock.device_s(moment) for clock, moment in zip(self.clocks, self.moments, strict=True))

    def device_since(self, start: Stamp) -> float:
        """Return seconds on the devices since `start`, a stamp of all of them."""
        assert isinstance(start, DevicesStamp)
        return self.device_s - start.device_s


class DevicesStamps:
    """Takes such stamps: the current stream of each GPU of the thread that takes one.

    Args:
        devices: the GPUs.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._clocks: list[Clock] = [CudaClock(device) for device in devices]

    def now(self) -> DevicesStamp:
        """Return this moment."""
        moments = [clock.now() for clock in self._clocks]
        return DevicesStamp(self._clocks[-1].host_s(moments[-1]), None, moments, self._clocks)


class CopiesBetween(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of floating-point tensors that are copied between devices while it is entered.

    Args:
        host: type of the device from which batches come, whose copies are left out; None leaves none out.

    Attributes:
        copied: bytes by pair of devices.
        wanted: whether the next forward is to be looked at.
    """

    def __init__(self, host: str | None = "cpu") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._host = host
        self.copied: dict[Pair, int] = {}
        self.wanted = self._entered = False

    def begin(self) -> None:
        """Look at the forward that begins, where that is wanted."""
        if self.wanted:
            self.wanted, self._entered = False, True
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Look no longer."""
        if self._entered:
            self._entered = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operator, and see whether it copies."""
        result = function(*args, **(kwargs or {}))
        if function in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
            source = tensors[-1]
            if source.device != result.device and source.is_floating_point() and source.device.type != self._host:
                pair = source.device, result.device
                self.copied[pair] = self.copied.get(pair, 0) + result.nbytes
        return result


def time_copies(copied: Mapping[Pair, int]) -> dict[Pair, float]:
    """Return the seconds of copies of these sizes between GPUs while nothing else runs."""
    copy_s: dict[Pair, float] = {}
    for (source, target), size_bytes in copied.items():
        sent = torch.empty(size_bytes, dtype=torch.uint8, device=source)
        copy = partial(sent.to, target, non_blocking=True)
        taken = [time_between_events(copy, source) for _ in range(COPIES + 1)]
        copy_s[source, target] = median(taken[1:])
    return copy_s


def tell_devices(
    workload: Workload, devices: Sequence[torch.device], copied: Mapping[Pair, int], copies_s: Mapping[Pair, float]
) -> Workload:
    """Return a recorded workload with the part of each device, and without the copies in its times.

    Args:
        workload: with parameters on `devices`.
        copied: bytes of a forward's copies.
        copies_s: what each takes; its gradient's copy back takes as long.

    Raises:
        WorkloadError: it is not known when forward needs the parameters, or nothing is copied from one to the next.
    """
    parts = _parts(workload, devices)
    order = [next(d for d in devices if str(d) == workload.parameters[part[0]].device) for part in parts]
    pairs = list(pairwise(order))
    for source, target in pairs:
        if not copied.get((source, target)):
            what = f"no activation is copied from {source} to {target}"
            raise WorkloadError(what, place="Capture", remedy="let forward pass each device once, one after the other")
    plain = _without_copies(workload, parts, [copies_s[pair] for pair in pairs])
    return put_on_devices(plain, parts, [copied[pair] for pair in pairs])


def _parts(workload: Workload, devices: Sequence[torch.device]) -> list[Members]:
    if workload.forward_use_s is None:
        what = "it was not seen when forward needs each parameter, so that its parts are not known"
        raise WorkloadError(what, place="Capture", remedy="call the modules that own parameters")
    use = np.nan_to_num(workload.forward_use_s.device_s, nan=np.inf)
    of = {str(device): [i for i, p in enumerate(workload.parameters) if p.device == str(device)] for device in devices}
    return sorted((tuple(members) for members in of.values()), key=lambda members: float(use[list(members)].min()))


def _without_copies(workload: Workload, parts: Sequence[Members], copies_s: Sequence[float]) -> Workload:
    use = workload.forward_use_s
    assert use is not None
    whole, use_s, ready_s = sum(copies_s), use.device_s.copy(), workload.gradient_ready_s.copy()
    for number, part in enumerate(parts):
        use_s[list(part)] -= sum(copies_s[:number])
        ready_s[:, list(part)] -= sum(copies_s[number:])
    forward, backward = (
        Phase(phase.host_s, np.maximum(phase.device_s - whole, 0.0)) for phase in (workload.forward, workload.backward)
    )
    return replace(
        workload,
        forward=forward,
        backward=backward,
        forward_use_s=ForwardUse(use.host_s, np.maximum(use_s, 0.0)),
        gradient_ready_s=np.maximum(ready_s, 0.0),
    )
