"""Compression schemes: what each puts on the wire for a bucket, and how much work encoding it is.

A `Roofline` makes that work seconds on a device; `scheme` finds one by the name that `--compression` takes. Read the
protocol `CompressionScheme`, which each scheme below fills.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.strict import parse_whole_number


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
    """The three constants that turn `CodecWork` into time; `ddpexec.microbench.codecs` fits them on a device.

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


ALLREDUCE, ALLGATHER = "allreduce", "allgather"
MIN_COMPRESSION_RATE = 2.0
"""A matrix is factored only where that saves more than this; `min_compression_rate` of torch's PowerSGD."""


@dataclass(frozen=True, slots=True)
class CompressedCollective:
    """One collective of a compressed bucket.

    Attributes:
        collective: `allreduce` or `allgather`.
        size_bytes: what is reduced; of an all-gather, what each rank contributes.
    """

    collective: str
    size_bytes: int

    def allreduce_bytes(self, world_size: int) -> float:
        """Return the size of the ring allreduce that moves as many bytes over each link.

        A ring allreduce of S bytes on p ranks moves 2 (p - 1) / p S over a link, a ring all-gather of s bytes a rank
        (p - 1) s: S = s p / 2. From p = 2 x ratio on an all-gather moves more than the plain allreduce.
        """
        return self.size_bytes * (world_size / 2 if self.collective == ALLGATHER and world_size > 1 else 1)


class CompressionScheme(Protocol):
    """A scheme says what a compressed bucket sends, and what compressing it costs."""

    @property
    def name(self) -> str:
        """The text that `scheme` reads."""

    def messages(self, parameters: Sequence[Parameter]) -> tuple[CompressedCollective, ...]:
        """Return the collectives of a bucket of these parameters, in order, each after the one before."""

    def works(self, parameters: Sequence[Parameter], world_size: int) -> tuple[CodecWork, ...]:
        """Return what one rank computes for such a bucket: before each message, and after the last."""


def work(scheme: CompressionScheme, parameters: Sequence[Parameter], world_size: int) -> CodecWork:
    """Return all that one rank computes for a bucket of these parameters."""
    return sum(scheme.works(parameters, world_size), CodecWork(0, 0))


def ratio(scheme: CompressionScheme, parameters: Sequence[Parameter], world_size: int = 2) -> float:
    """Return plain bytes over compressed bytes, both as ring allreduces on `world_size` ranks."""
    sent = sum(message.allreduce_bytes(world_size) for message in scheme.messages(parameters))
    return sum(p.size_bytes for p in parameters) / sent if sent else math.inf


@dataclass(frozen=True, slots=True)
class Uncompressed:
    """Compresses nothing: a bucket is one allreduce of its gradients."""

    name: str = "none"

    def messages(self, parameters: Sequence[Parameter]) -> tuple[CompressedCollective, ...]:
        """Return one allreduce."""
        return (CompressedCollective(ALLREDUCE, sum(p.size_bytes for p in parameters)),)

    def works(self, parameters: Sequence[Parameter], world_size: int) -> tuple[CodecWork, ...]:
        """Return no work."""
        return CodecWork(0, 0), CodecWork(0, 0)


@dataclass(frozen=True, slots=True)
class HalfPrecision:
    """Casts gradients to two bytes, as torch's `fp16_compress_hook` and `bf16_compress_hook` do."""

    name: str = "fp16"

    def messages(self, parameters: Sequence[Parameter]) -> tuple[CompressedCollective, ...]:
        """Return one allreduce of two bytes an element."""
        return (CompressedCollective(ALLREDUCE, 2 * _elements(parameters)),)

    def works(self, parameters: Sequence[Parameter], world_size: int) -> tuple[CodecWork, ...]:
        """Return cast and division, then the cast back: one read and write of each."""
        size, half = sum(p.size_bytes for p in parameters), 2 * _elements(parameters)
        return CodecWork(2, size + 3 * half), CodecWork(1, size + half)


@dataclass(frozen=True, slots=True)
class PowerSGD:
    """Matrices as products of two factors of `rank` columns (Vogels et al. 2019), as torch's `powerSGD_hook`."""

    rank: int = 1

    @property
    def name(self) -> str:
        """`powersgd:RANK`."""
        return f"powersgd:{self.rank}"

    def messages(self, parameters: Sequence[Parameter]) -> tuple[CompressedCollective, ...]:
        """Return three allreduces: what is not factored, left factors, right factors."""
        plain = left = right = 0
        for p in parameters:
            rows, columns = _matrix(p)
            rank = min(rows, columns, self.rank)
            item = p.size_bytes // p.numel if p.numel else 0
            if self.factors(p):
                left, right = left + rows * rank * item, right + columns * rank * item
            else:
                plain += p.size_bytes
        return tuple(CompressedCollective(ALLREDUCE, size) for size in (plain, left, right))

    def factors(self, parameter: Parameter) -> bool:
        """Return whether this parameter's gradient is worth factoring."""
        rows, columns = _matrix(parameter)
        return (rows + columns) * min(rows, columns, self.rank) * MIN_COMPRESSION_RATE < rows * columns

    def works(self, parameters: Sequence[Parameter], world_size: int) -> tuple[CodecWork, ...]:
        """Return error feedback (8 passes), three thin products of each matrix, two orthogonalisations a shape.

        Left factors are made before anything is sent, right ones from their sum; the last work puts the gradients
        together and keeps the error.
        """
        size = sum(p.size_bytes for p in parameters)
        matrices = [p for p in parameters if self.factors(p)]
        shapes, factored = len({_matrix(p) for p in matrices}), sum(p.size_bytes for p in matrices)
        product = sum(2 * p.numel * min(*_matrix(p), self.rank) for p in matrices)
        before, after = (
            CodecWork(4 + 2 * shapes, 4 * size + factored, product),
            CodecWork(4 + shapes, 4 * size + factored, product),
        )
        return before, CodecWork(0, 0), CodecWork(2 * shapes, factored, product), after


@dataclass(frozen=True, slots=True)
class OneBit:
    """Signs with two means a parameter, and error feedback (Seide et al. 2014); gathered, since signs do not add."""

    name: str = "onebit"

    def messages(self, parameters: Sequence[Parameter]) -> tuple[CompressedCollective, ...]:
        """Return one all-gather: of each parameter a bit an element, in whole bytes, and two float32."""
        return (CompressedCollective(ALLGATHER, sum(8 + -(-_elements([p]) // 8) for p in parameters)),)

    def works(self, parameters: Sequence[Parameter], world_size: int) -> tuple[CodecWork, ...]:
        """Return 14 passes to encode and keep the error, then 4 for each rank's message."""
        size = sum(p.size_bytes for p in parameters)
        return CodecWork(20 + 4 * len(parameters), 14 * size), CodecWork(8 * world_size, 4 * world_size * size)


@dataclass(frozen=True, slots=True)
class TopK:
    """Gathers the largest entries with their indices, and feeds the error back (Aji and Heafield 2017)."""

    density: float = 0.01

    @property
    def name(self) -> str:
        """`topk:DENSITY`."""
        return f"topk:{self.density:g}"

    def count_kept(self, elements: int) -> int:
        """Return how many entries of `elements` are sent: at least one."""
        return min(elements, max(1, math.ceil(self.density * elements)))

    def messages(self, parameters: Sequence[Parameter]) -> tuple[CompressedCollective, ...]:
        """Return one all-gather of a float32 and an int32 for each entry sent."""
        return (CompressedCollective(ALLGATHER, 8 * self.count_kept(_elements(parameters))),)

    def works(self, parameters: Sequence[Parameter], world_size: int) -> tuple[CodecWork, ...]:
        """Return 12 passes to select and keep the error, then a scatter for each rank's message."""
        size, sent = sum(p.size_bytes for p in parameters), self.messages(parameters)[0].size_bytes
        return CodecWork(10, 12 * size), CodecWork(3 * world_size, 3 * world_size * sent)


@dataclass(frozen=True, slots=True)
class AdaptivePrecision:
    """Writes each bucket with the fewest of 1, 8, 16 and 32 bits that its gradients bear, and feeds the error back.

    A run finds the bits when the gradients are there (`ddpexec.ddp.compression.AdaptiveState`); a prediction takes
    `bits`.
    """

    bits: int = 8

    @property
    def name(self) -> str:
        """`adaptive:BITS`."""
        return f"adaptive:{self.bits}"

    def messages(self, parameters: Sequence[Parameter]) -> tuple[CompressedCollective, ...]:
        """Return one all-gather of the codec of these bits; of 32 an allreduce of the gradients."""
        if self.bits == 1:
            return OneBit().messages(parameters)
        if self.bits == 8:
            return (CompressedCollective(ALLGATHER, 4 * len(parameters) + _elements(parameters)),)
        return (
            (CompressedCollective(ALLGATHER, 2 * _elements(parameters)),)
            if self.bits == 16
            else Uncompressed().messages(parameters)
        )

    def works(self, parameters: Sequence[Parameter], world_size: int) -> tuple[CodecWork, ...]:
        """Return the passes of `ddpexec.ddp.compression.codecs`, the error kept, then those of each rank's message.

        Of 8 bits 16 to encode and keep the error and 4 for each message, of 16 bits 8 and 3, of 32 the correction's 3.
        The choice every 20 iterations, a round trip through three codecs, is two passes more in the mean.
        """
        size = sum(p.size_bytes for p in parameters)
        choice = CodecWork(3, 2 * size)
        if self.bits == 1:
            before, after = OneBit().works(parameters, world_size)
            return before + choice, after
        passes, each = {8: (16, 4), 16: (8, 3), 32: (3, 0)}[self.bits]
        kernels = 10 + 4 * len(parameters) if self.bits == 8 else 6
        return CodecWork(kernels, passes * size) + choice, CodecWork(each * world_size, each * world_size * size)


def _elements(parameters: Sequence[Parameter]) -> int:
    """Return real elements: a complex gradient is reduced as two real ones."""
    return sum(p.numel * (2 if p.dtype.startswith("complex") else 1) for p in parameters)


def _matrix(parameter: Parameter) -> tuple[int, int]:
    """Return rows and columns of the gradient as torch's hook views it: first dimension by all others."""
    shape = parameter.shape or (1,)
    return shape[0], math.prod(shape[1:])


def scheme(text: str) -> CompressionScheme:
    """Return the scheme that `text` names: `none`, `fp16`, `bf16`, `powersgd:4`, `onebit`, `topk:0.01` or `adaptive`.

    Raises:
        UnknownNameError: no such scheme.
        InputError: a parameter that is missing, unknown or out of range.
    """
    name, _, value = text.partition(":")
    if name in ("powersgd", "topk"):
        return PowerSGD(_rank(value)) if name == "powersgd" else TopK(_density(value))
    if name == "adaptive":
        return AdaptivePrecision(_bits(value)) if value else AdaptivePrecision()
    if name not in ("none", "fp16", "bf16", "onebit"):
        known = ("none", "fp16", "bf16", "powersgd", "onebit", "topk", "adaptive")
        raise UnknownNameError.among("compression", name, known)
    if value:
        raise InputError(f"compression {name!r} takes no parameter, got {value!r}", remedy=f"write {name}")
    return Uncompressed() if name == "none" else OneBit() if name == "onebit" else HalfPrecision(name)


def _rank(value: str) -> int:
    if not (rank := parse_whole_number(value)):
        raise InputError(f"rank {value!r} is not a whole number of at least 1", remedy="write e.g. powersgd:4")
    return rank


def _bits(value: str) -> int:
    if value not in ("1", "8", "16", "32"):
        raise InputError(f"{value!r} are not 1, 8, 16 or 32 bits", remedy="write e.g. adaptive:8")
    return int(value)


def _density(value: str) -> float:
    try:
        density = float(value)
    except ValueError:
        density = math.nan
    if not 0 < density <= 1:
        raise InputError(f"density {value!r} is not a share above 0 and at most 1", remedy="write e.g. topk:0.01")
    return density
