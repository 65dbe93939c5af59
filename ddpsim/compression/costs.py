"""What encoding costs: the work of a bucket's codec, and the roofline that makes it seconds on a device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CodecWork:
    """What compressing and decompressing one bucket asks of a processor.

    Attributes:
        kernels: launches, or operator calls on a CPU.
        moved_bytes: bytes read and written in memory.
        flops: floating-point operations of matrix products.
    """

    kernels: int
    moved_bytes: float
    flops: float = 0.0

    def __add__(self, other: CodecWork) -> CodecWork:
        return CodecWork(self.kernels + other.kernels, self.moved_bytes + other.moved_bytes, self.flops + other.flops)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The three constants that turn `CodecWork` into time; `ddpexec.compression.measure` fits them on a device.

    Attributes:
        launch_s: seconds a kernel launch or operator call.
        memory_bandwidth: bytes/s that elementwise operations reach.
        flops: floating-point operations a second of thin matrix products; None counts their memory traffic alone.
    """

    launch_s: float
    memory_bandwidth: float
    flops: float | None = None

    def time_s(self, work: CodecWork) -> float:
        """Return launches plus the slower of memory and arithmetic (a roofline), in seconds."""
        arithmetic = work.flops / self.flops if self.flops else 0.0
        return work.kernels * self.launch_s + max(work.moved_bytes / self.memory_bandwidth, arithmetic)
