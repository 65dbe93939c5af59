"""Collectives of a single rank on a pretended GPU, as NCCL's and gloo's behave there.

They stand in for `Communicator.all_reduce`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.ddpexec.ddp.pretended_gpu import Gpu, Stream


class Nccl:
    """Collectives on a stream of their own, after what their caller has queued; `wait` is the device's."""

    def __init__(self, gpu: Gpu, seconds: float) -> None:
        self.gpu, self.seconds = gpu, seconds
        self.stream = gpu.new_stream()
        self.ends_s: list[float] = []

    def all_reduce(self, tensor: torch.Tensor, number: int) -> NcclWork:
        """Queue a collective."""
        self.ends_s.append(self.stream.queue(self.seconds, self.gpu.current.free_s))
        return NcclWork(self.gpu, self.ends_s[-1])


@dataclass
class NcclWork:
    """Of one collective."""

    gpu: Gpu
    end_s: float

    def wait(self, timeout: Any = None) -> bool:
        """Let the current stream wait, not the host."""
        self.gpu.current.queue(0.0, self.end_s)
        return True

    def is_completed(self) -> bool:
        """Return whether the device has finished it."""
        return time.perf_counter() >= self.end_s


class Gloo:
    """Collectives on a thread of the host's, which waits for what their caller has queued and copies back at the end.

    Args:
        seconds: on the wire.
        copy_s: of the copy back, which the thread queues and does not wait for.
    """

    def __init__(self, gpu: Gpu, seconds: float, copy_s: float = 0.0) -> None:
        self.gpu, self.seconds, self.copy_s = gpu, seconds, copy_s
        self.stream = gpu.new_stream()
        self.ends_s: list[float] = []

    def all_reduce(self, tensor: torch.Tensor, number: int) -> GlooWork:
        """Start a collective."""
        work = GlooWork(self.gpu, self.stream)
        threading.Thread(target=self._run, args=(work, self.gpu.current.free_s)).start()
        return work

    def _run(self, work: GlooWork, ready_s: float) -> None:
        time.sleep(max(0.0, ready_s - time.perf_counter()) + self.seconds)
        work.end_s = self.stream.queue(self.copy_s)
        self.ends_s.append(work.end_s)
        work.future.set_result(None)


@dataclass
class GlooWork:
    """Of one collective."""

    gpu: Gpu
    stream: Stream
    end_s: float | None = None
    future: torch.futures.Future[None] = field(default_factory=torch.futures.Future)

    def wait(self, timeout: Any = None) -> bool:
        """Let the host wait for the thread, and the current stream for the copy."""
        if not self.future.done():
            self.gpu.waits.append("GlooWork.wait")
        self.future.wait()
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Let the current stream wait for the copy."""
        self.gpu.current.queue(0.0, self.end_s or 0.0)

    def get_future(self) -> torch.futures.Future[None]:
        """Return what the thread completes."""
        return self.future

    def is_completed(self) -> bool:
        """Return whether the thread has finished it."""
        return self.future.done()
