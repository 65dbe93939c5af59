"""A GPU that is not there: streams and events on a timeline of their own, while tensors are the CPU's.

Only what is told to take time on the device does: `torch.cuda._sleep`, and collectives (`pretended_backends`).
Everything that makes the host wait for the device waits indeed, and is counted, so that a test can say that a step
never did.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch

MS = 1e-3
CUDA = torch.device("cuda", 0)
CYCLES_A_SECOND = 1.4e9
READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "nonzero")


class HostTime:
    """The host's clock where a test is to the microsecond: it moves as the host sleeps, and `LOOK_S` at each look.

    For one thread alone; what several sleep would add up.
    """

    LOOK_S = 1e-6

    def __init__(self) -> None:
        self.now_s = 1000.0

    def perf_counter(self) -> float:
        """Return the time, in place of `time.perf_counter`."""
        self.now_s += self.LOOK_S
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass, in place of `time.sleep`."""
        self.now_s += max(0.0, seconds)


class Stream:
    """What is queued here runs in order; `free_s` is when all of it has, on `time.perf_counter`."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.free_s = 0.0

    def queue(self, seconds: float, after_s: float = 0.0) -> float:
        """Queue work that takes `seconds` once the stream is free and `after_s` has come; return its end."""
        self.free_s = max(time.perf_counter(), self.free_s, after_s) + seconds
        return self.free_s

    def synchronize(self) -> None:
        """Let the host wait for all of it."""
        if self.free_s > time.perf_counter():
            self.gpu.hold("Stream.synchronize", self.free_s)


@dataclass
class Gpu:
    """The device: its streams, and what made the host wait for it.

    Attributes:
        kernel_s: what each kernel takes beside what it is told to.
        waits: the calls that held the host until the device had come that far.
        spun_s: the time of all spins.
        synchronised: the devices that the host waited for as a whole.
    """

    kernel_s: float = 0.0
    spun_s: float = 0.0
    waits: list[str] = field(default_factory=list)
    synchronised: list[Any] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._default = self.new_stream()
        self._of_thread = threading.local()

    def new_stream(self, device: Any = None, **_: Any) -> Stream:
        """Return one more stream."""
        self.streams.append(Stream(self))
        return self.streams[-1]

    @property
    def current(self) -> Stream:
        """The stream that this thread queues on."""
        return getattr(self._of_thread, "stream", self._default)

    def hold(self, what: str, until_s: float) -> None:
        """Let the host wait for the device."""
        self.waits.append(what)
        time.sleep(max(0.0, until_s - time.perf_counter()))

    @contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        """Queue on `stream` within; None changes nothing, as in torch."""
        before = self.current
        self._of_thread.stream = stream or before
        try:
            yield
        finally:
            self._of_thread.stream = before

    @contextmanager
    def reading_tensors_waits(self) -> Iterator[None]:
        """Let the host wait, within, for whatever reads a tensor's values, as it would for a tensor on the device."""

        def waiting(name: str) -> Callable[..., Any]:
            read = getattr(torch.Tensor, name)

            def wait_and_read(tensor: torch.Tensor, *args: Any) -> Any:
                self.hold(f"Tensor.{name}", self.current.free_s)
                return read(tensor, *args)

            return wait_and_read

        with mock.patch.multiple(torch.Tensor, **{name: waiting(name) for name in READS}):
            yield

    @contextmanager
    def copying_waits(self) -> Iterator[None]:
        """Let the host wait, within, for copies to the device and back, but for those of pinned memory that need not.

        A tensor that was not made as pinned lies on the device, unless it is being sent there.
        """
        pinned: dict[int, torch.Tensor] = {}
        send, copy = torch.Tensor.to, torch.Tensor.copy_

        def made(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
            def make_pinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
                tensor = make(*args, **kwargs)
                if pin_memory:
                    pinned[id(tensor)] = tensor
                return tensor

            return make_pinned

        def cross(what: str, free: bool) -> None:
            if not free:
                self.hold(what, self.current.free_s)
            self.current.queue(0.0)

        def to(tensor: torch.Tensor, *args: Any, non_blocking: bool = False, **kwargs: Any) -> torch.Tensor:
            if not (args and isinstance(args[0], torch.device) and args[0].type == "cuda"):
                return send(tensor, *args, non_blocking=non_blocking, **kwargs)
            cross("Tensor.to", non_blocking and id(tensor) in pinned)
            return tensor.clone()

        def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
            if id(target) in pinned or id(source) in pinned:
                cross("Tensor.copy_", non_blocking)
            return copy(target, source)

        factories = {name: made(getattr(torch, name)) for name in ("empty", "zeros")}
        with mock.patch.multiple(torch, **factories), mock.patch.multiple(torch.Tensor, to=to, copy_=copy_):
            yield

    @contextmanager
    def installed(self) -> Iterator[Gpu]:
        """Stand in for what ddpexec uses of `torch.cuda`, within."""
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.timed = enable_timing
                self.at_s: float | None = None

            def record(self, stream: Stream | None = None) -> None:
                self.at_s = (stream or gpu.current).queue(0.0)

            def synchronize(self) -> None:
                assert self.at_s is not None, "an event that was never recorded"
                if self.at_s > time.perf_counter():
                    gpu.hold("Event.synchronize", self.at_s)

            def query(self) -> bool:
                assert self.at_s is not None, "an event that was never recorded"
                return self.at_s <= time.perf_counter()

            def elapsed_time(self, end: Event) -> float:
                assert self.timed is end.timed is True, "an event without enable_timing"
                begin_s, end_s = self.reached(), end.reached()
                return float(np.float32((end_s - begin_s) * 1e3))

            def reached(self) -> float:
                assert self.at_s is not None, "an event that was never recorded"
                assert self.at_s <= time.perf_counter(), "an event that the device has not reached"
                return self.at_s

        def synchronize(device: Any = None) -> None:
            gpu.synchronised.append(device)
            gpu.hold("synchronize", max(stream.free_s for stream in gpu.streams))

        def sleep(cycles: int) -> None:
            seconds = gpu.kernel_s + cycles / CYCLES_A_SECOND
            gpu.spun_s += seconds
            gpu.current.queue(seconds)

        with mock.patch.multiple(
            torch.cuda,
            Event=Event,
            Stream=gpu.new_stream,
            current_device=lambda: 0,
            current_stream=lambda device=None: gpu.current,
            stream=gpu.on,
            synchronize=synchronize,
            _sleep=sleep,
        ):
            yield self


def busy(seconds: float) -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(round(seconds * CYCLES_A_SECOND))
