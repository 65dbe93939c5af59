"""Moments on a rank's clocks: the host's, and on a GPU the device's too, without ever making the host wait.

`time.perf_counter` is the machine's monotonic clock on Linux, common to all processes of one machine. Ranks on other
machines measure their offset to rank 0's (`offset_to_rank_zero`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator, FinishedWork

Moment = Any
"""What `Clock.now` returns; only its own clock can tell the seconds."""

PINGS = 15
"""Messages there and back, of which the quickest tells the offset of two clocks; chosen by hand."""
NEW_BASE_S = 10.0
"""CUDA tells the milliseconds between two events in 24 bits: to 1 us over this long, to 0.25 ms over an hour."""
_ASK_AGAIN_S = 0.5e-3
"""Between two questions whether a GPU is done, so that signals are heard meanwhile; chosen by hand."""
_WHAT = "the exchange of clocks"


class Clock(Protocol):
    """Takes moments cheaply and converts them to seconds later."""

    now: Callable[[], Moment]
    """Return this moment."""

    def host_s(self, moment: Moment) -> float:
        """Return when the host was there."""

    def device_s(self, moment: Moment) -> float:
        """Return when the device was there, on the host's clock; waits for the device only if it is not there yet."""

    def watch(self, work: Any, position: int = 0) -> Callable[[], Moment | None]:
        """Return a function that gives the moment at which `work` finished, None while unknown.

        Args:
            work: of a collective.
            position: how many collectives were launched before it in this iteration.
        """


class HostClock:
    """The clock of a rank on a CPU: host and device are one, a moment is its seconds."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = time.perf_counter

    def host_s(self, moment: float) -> float:
        """Return the moment itself."""
        return moment

    device_s = host_s

    def watch(self, work: Any, position: int = 0) -> Callable[[], float | None]:
        """Stamp the end of `work` from its future, on the backend's own thread."""
        done: list[float] = []
        future = work if isinstance(work, torch._C.Future) else getattr(work, "get_future", lambda: None)()
        if future is not None:
            future.add_done_callback(lambda _: done.append(time.perf_counter()))
        return lambda: done[0] if done else None


@dataclass(slots=True)
class _Base:
    """An event that later ones are timed against, and its time on the host's clock, once it is known."""

    event: torch.cuda.Event
    host_s: float
    before: _Base | None = None
    device_s: float | None = None


@dataclass(frozen=True, slots=True)
class CudaMoment:
    """When the host was there, the event that marks it on the current stream, and what that is timed against."""

    host_s: float
    event: torch.cuda.Event
    base: _Base


class CudaClock:
    """The clocks of a rank on a GPU; events are tied to the host's clock once, when the device is idle anyway.

    Args:
        device: of this rank.
        backend: of the collectives: a stream can wait for those of `nccl`, a thread of the host runs those of `gloo`.
        groups: process groups that take turns; each ends its collectives in order, but none waits for another's.
    """

    def __init__(self, device: torch.device, backend: str = "nccl", groups: int = 1) -> None:
        self._device, self._by_thread = device, backend == "gloo"
        self._sides = [torch.cuda.Stream(device) for _ in range(groups)]  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)
        event = self._event(torch.cuda.current_stream(device))
        self._base = _Base(event, time.perf_counter())
        event.synchronize()
        self.now: Callable[[], CudaMoment] = self._take_moment

    def host_s(self, moment: CudaMoment) -> float:
        """Return when the host queued the event."""
        return moment.host_s

    def device_s(self, moment: CudaMoment) -> float:
        """Return when the device reached the event."""
        moment.event.synchronize()
        return _base_offset(moment.base) + _measure_between(moment.base.event, moment.event)

    def watch(self, work: Any, position: int = 0) -> Callable[[], CudaMoment | None]:
        """Mark the end of `work` on a stream of our own; neither host nor computation waits."""
        if isinstance(work, FinishedWork):
            return lambda: None
        side = self._sides[position % len(self._sides)]
        # gloo's works are done when a thread of the host says so; NCCL's `wait` only makes the current stream wait, so
        # that on a side stream an event behind it marks the end and nothing else is held up.
        if self._by_thread:
            return self._watch_thread(work, side)
        with torch.cuda.stream(side):
            work.wait()
            moment = self._record(side)
        return lambda: moment

    def _watch_thread(self, work: Any, side: torch.cuda.Stream) -> Callable[[], CudaMoment | None]:
        done: list[CudaMoment] = []
        hooked = isinstance(work, torch._C.Future)
        future = work if hooked else work.get_future()

        def ended(_: Any) -> None:
            # On the backend's thread, which has queued the copy back to the device, or what a hook does after that.
            if hooked:
                done.append(self._take_moment())
                return
            with torch.cuda.stream(side):
                work.synchronize()
                done.append(self._record(side))

        future.add_done_callback(ended)
        return lambda: done[0] if done else None

    def _take_moment(self) -> CudaMoment:
        moment = self._record(torch.cuda.current_stream(self._device))
        if moment.host_s - moment.base.host_s > NEW_BASE_S:
            # Times between two events lose precision with their distance, so every ten seconds a stamp becomes the base
            # of later ones.
            self._base = _Base(moment.event, moment.host_s, moment.base)
        return moment

    def _record(self, stream: torch.cuda.Stream) -> CudaMoment:
        event = self._event(stream)
        return CudaMoment(time.perf_counter(), event, self._base)

    def _event(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event


def _base_offset(base: _Base) -> float:
    """Return when the device was at `base`: the sum of the times from each base to the next."""
    # A loop and not a recursion: a long training without a look at its times has as many bases as it lasted tens of
    # seconds.
    ahead = []
    while base.device_s is None and base.before is not None:
        ahead.append(base)
        base = base.before
    seconds = base.host_s if base.device_s is None else base.device_s
    for later in reversed(ahead):
        later.event.synchronize()
        seconds += _measure_between(base.event, later.event)
        later.device_s, base = seconds, later
    return seconds


def _measure_between(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) / 1e3


class DevicesClock:
    """The clocks of a rank on several GPUs: a moment is of the one that is current for the thread that takes it.

    Autograd has a thread for each GPU, for which that one is current.

    Args:
        devices: of this rank.
        backend: as that of `CudaClock`.
    """

    def __init__(self, devices: Sequence[torch.device], backend: str) -> None:
        self._clocks = {device.index: CudaClock(device, backend) for device in devices}
        self._first = self._clocks[devices[0].index]
        self.now: Callable[[], CudaMoment] = self._take_moment
        self.host_s, self.device_s = self._first.host_s, self._first.device_s

    def watch(self, work: Any, position: int = 0) -> Callable[[], CudaMoment | None]:
        """Mark the end of `work`, which is of the current GPU."""
        return self._current().watch(work)

    def _take_moment(self) -> CudaMoment:
        return self._current().now()

    def _current(self) -> CudaClock:
        return self._clocks.get(torch.cuda.current_device(), self._first)


def clock_of(devices: Sequence[torch.device], backend: str, groups: int) -> Clock:
    """Return the clock of a rank that computes on `devices` and sends over `groups` process groups in turn."""
    if len(devices) > 1:
        return DevicesClock(devices, backend)
    return CudaClock(devices[0], backend, groups) if devices[0].type == "cuda" else HostClock()


def offset_to_rank_zero(communicator: Communicator) -> float:
    """Return the seconds to add to this rank's host clock to get rank 0's; 0 where all ranks share a machine.

    Elsewhere rank 0 answers each rank in turn; the offset is taken at the exchange with the shortest round trip, and
    is wrong by at most half of that. Every rank must call this.
    """
    machines: list[Any] = [None] * communicator.world_size
    with name_lost_ranks(communicator, _WHAT):
        dist.all_gather_object(machines, _machine(), group=communicator.main)
    if len(set(machines)) == 1:
        return 0.0
    offset = 0.0
    # Rank after rank, as rank 0 answers one at a time: two at once would lengthen each other's round trips.
    for rank in range(1, communicator.world_size):
        if communicator.rank in (0, rank):
            with name_lost_ranks(communicator, _WHAT):
                measured = _exchange(communicator, rank)
            offset = measured if communicator.rank == rank else offset
    return offset


def _exchange(communicator: Communicator, rank: int) -> float:
    best, offset = float("inf"), 0.0
    on_device = communicator.backend == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_device else torch.device("cpu")
    for _ in range(PINGS):
        box = torch.zeros(1, dtype=torch.float64, device=device)
        settle(device)
        if communicator.rank == 0:
            dist.recv(box, group_src=rank, group=communicator.main)
            settle(device)
            box.fill_(time.perf_counter())
            dist.send(box, group_dst=rank, group=communicator.main)
            continue
        begin = time.perf_counter()
        dist.send(box, group_dst=0, group=communicator.main)
        dist.recv(box, group_src=0, group=communicator.main)
        settle(device)
        end = time.perf_counter()
        if end - begin < best:
            best, offset = end - begin, float(box.item()) - (begin + end) / 2
    return offset


def settle(device: torch.device) -> None:
    """Wait until a GPU has done what is queued on its current stream; NCCL's own `wait` makes that stream wait only."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def drain(device: torch.device) -> None:
    """Wait as `settle` does, but hear of signals meanwhile."""
    if device.type == "cuda":
        end = torch.cuda.Event()  # type: ignore[no-untyped-call]
        end.record(torch.cuda.current_stream(device))
        while not end.query():  # type: ignore[no-untyped-call]
            time.sleep(_ASK_AGAIN_S)


def _machine() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()
