"""What a compression scheme costs a rank for each bucket: messages, and what is computed before, between and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsim.bucketing import Bucket, Parameter
from ddpsim.compression import CompressionScheme, Roofline
from ddpsim.simulation.ddp_costs import CODEC_KERNEL_S, CODEC_RATE, Costs
from ddpsim.simulation.linear import Linear, Rate
from ddpsim.workload.gpus import AchievedGpu


@dataclass(frozen=True, slots=True)
class Encoding:
    """What one bucket sends, and what a rank computes for it: nothing, where it is sent as it is.

    Attributes:
        messages: (seconds since the message before has ended, bytes); the first has none.
        encode_s: before the first message: on a CPU the host's time, else the device's.
        decode_s: after the last.
        host_s: of launching all that, beside the messages themselves; nothing on a CPU.
    """

    messages: tuple[tuple[float, int], ...]
    encode_s: float = 0.0
    decode_s: float = 0.0
    host_s: float = 0.0


class CodecCosts:
    """A scheme at work on one kind of rank, priced with what was measured of it, else as DDP's own copies are.

    Then a byte read or written takes half of what a copied byte does, a kernel the least time of one, and of the host
    what a hook does; matrix products run at the share of the GPU's peak that fp32 training reaches.

    Args:
        scheme: of all buckets.
        parameters: of the model.
        world_size: messages that are gathered grow with it.
        costs: of DDP.
        gpu: that encodes; None is a CPU, or a GPU that nobody described.
        one_thread: whether the host encodes.
    """

    def __init__(
        self,
        scheme: CompressionScheme,
        parameters: Sequence[Parameter],
        world_size: int,
        costs: Costs,
        *,
        gpu: AchievedGpu | None,
        one_thread: bool,
    ) -> None:
        self._scheme, self._parameters, self._world_size = scheme, parameters, world_size
        flops = gpu.achieved_flops("gemm", "fp32") if gpu and "fp32" in gpu.peak_flops else None
        codec = costs.codec(scheme.name, one_thread=one_thread)
        kernel_s, rate = Linear.of(CODEC_KERNEL_S, codec.launch_s), Rate(codec.memory_bandwidth, CODEC_RATE)
        self._processor = Roofline(kernel_s, rate, flops)
        self._kernel_host_s = 0.0 if one_thread else costs.hook_s
        self._known: dict[tuple[int, ...], Encoding] = {}

    def encoding(self, bucket: Bucket) -> Encoding:
        """Return how `bucket` is encoded."""
        if (known := self._known.get(bucket.parameters)) is not None:
            return known
        parameters, time_s = [self._parameters[index] for index in bucket.parameters], self._processor.time_s
        works = self._scheme.works(parameters, self._world_size)
        sizes = [round(m.allreduce_bytes(self._world_size)) for m in self._scheme.messages(parameters)]
        pauses = [0.0, *map(time_s, works[1:-1])]
        host_s = sum(work.kernels for work in works) * self._kernel_host_s
        messages = tuple(zip(pauses, sizes, strict=True))
        found = self._known[bucket.parameters] = Encoding(messages, time_s(works[0]), time_s(works[-1]), host_s)
        return found
