"""What DDP itself costs a rank beside wire time, as constants of a calibration.

The microbenchmark of ddpexec measures each of them (key `ddp` of its file); without it those of
`ddpsim.collectives.ddp_priors` hold. Read `Costs`, field by field; `CodecCosts` is what a compression scheme adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ddpsim.bucketing import Parameter
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.codec_priors import CODEC_PRIORS
from ddpsim.collectives.constant import GIVEN
from ddpsim.collectives.ddp_priors import DDP_PRIORS, DEVICES, KERNEL_S, MODULES
from ddpsim.collectives.nccl.loads import HOST, HOST_TO_NIC, NET, NVLINK, NVSWITCH, PCIE, XGMI
from ddpsim.schedules.compression import CompressionScheme, Roofline
from ddpsim.simulation.linear import Linear, Rate
from ddpsim.workload.gpus import GPUS, AchievedGpu

KERNELS = 2.0
"""Kernels of backward a gradient: a ResNet's convolutions, norms and activations have 1.3, a transformer's 2.5."""

TIMES = (
    "hook_s", "launch_s", "copy_s", "finish_s", "forward_s", "buffer_s", "search_s", "expect_s", "agree_s", "rebuild_s",
    "unit_s",
)  # fmt: skip
"""The costs that are parts of nodes' seconds, so many times each."""

HOST_COSTS = ("hook_s", "launch_s", "finish_s", "forward_s", "buffer_s", "search_s", "graph_s", "broadcast_s")
"""What the host spends on DDP in any job."""
_ON_HOST = (*HOST_COSTS, "expect_s", "agree_s", "rebuild_s", "unit_s")

ENTER_S, CODEC_KERNEL_S, CODEC_RATE = "enter_s", "codec_kernel_s", "codec_Bps"
"""What else nodes' seconds are made of: what a collective's start takes, and a codec's kernels and bytes."""

_NEUTRAL = {"compute_slowdown": 1.0, "enter_s": 0.0, "communication_slowdown": 1.0, "late_kernels": 0.0}
"""With these given, computing and communicating at once costs no more than each by itself."""


def remove_overlap_costs(backend: str, calibration: Calibration | None) -> Calibration:
    """Return `calibration`, or the priors, with what computing and communicating at once costs left out."""
    priors = Calibration.priors(backend)
    start = replace(calibration or priors, constants={**priors.constants, **(calibration or priors).constants})
    values = {name: value for key, value in _NEUTRAL.items() if (name := f"{backend}.ddp.{key}") in start.constants}
    return start.with_values(values, source=GIVEN)


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of DDP on one backend.

    Attributes:
        hook_s: host time of one gradient's hook, without the copy of its bytes.
        launch_s: host time to launch one collective.
        copy_Bps: bytes of gradients a second copied into or out of buckets.
        copy_s: device time of copying one tensor, whatever its size.
        finish_s: host time of one bucket at the end of backward, without the copy of its bytes.
        forward_s: host time DDP adds to a forward.
        buffer_s: host time a buffer of the broadcast.
        broadcast_s: the least time of a broadcast of buffers, on ranks whose processors were busy just before.
        search_s: host time a parameter of the search for unused ones.
        expect_s: host time a parameter of a predictor of arrivals that is asked what comes next.
        agree_s: host time a parameter and rank of agreeing on one order.
        rebuild_s: host time a parameter of building buckets anew.
        graph_s: host time of a further graph of a compiled step, forward and backward.
        graph_passes: through a GPU's memory, of what crosses from one graph to the next in forward, and as many of its
            gradient in backward.
        enter_s: time that the start of a collective takes from the GPU's computation, whatever its size.
        pace_spread: standard deviation of the logarithm of computing time among devices of one model.
        node_spread: the same among nodes, which differ as a whole beyond that: their cooling, power and hosts.
        copy_slowdown: factor on the time of hooks, copies and launches on a CPU beside a collective of the same rank.
        step_slowdown: factor on the time that threads take from step to step of a collective while ranks are busy.
        pair_s, behind_s: the least time of an allreduce over gloo beside another: beside any, and beside one whose
            bytes lie in the links' queues.
        unit_s: host time of torch's `fully_shard` for a collective over gloo, without the wait and large copies.
        shared_compute_slowdown: factor on computing time where several ranks of one machine compute: CPU ranks share
            caches and memory, GPUs power and cooling.
        compute_slowdown: factor on computing time while a collective runs on the same rank.
        communication_slowdown: factor on a collective's time while some rank computes.
        channel_multiprocessors: multiprocessors of a GPU that one channel of a collective keeps from computation.
        late_kernels: kernels of the computation beside it that a collective waits for before its blocks get in.
        memory_passes: bytes read or written in a GPU's memory for each byte that its rank sends.
        tail_share: share of a compute kernel's time that it takes longer by for lack of a multiprocessor, however few
            are taken: the blocks that find none make one wave more.
        nvlink_slowdown, pcie_slowdown, staged_slowdown, staged_net_slowdown, net_slowdown: factors on the time of
            hops by NVLinks or xGMI, by PCIe from card to card, through host memory between cards and to a NIC alone,
            and between nodes, while some rank computes; a collective goes as its slowest hop then does.
        codecs: what was measured or given of `ddpsim.collectives.codec_priors`, by name (`fp16_Bps`).
        given: names of what was measured or given, and so stands in place of what is derived.
    """

    hook_s: float
    launch_s: float
    copy_Bps: float  # noqa: N815
    copy_s: float
    finish_s: float
    forward_s: float
    buffer_s: float
    broadcast_s: float
    search_s: float
    expect_s: float
    agree_s: float
    rebuild_s: float
    graph_s: float
    enter_s: float
    pace_spread: float
    copy_slowdown: float
    step_slowdown: float
    shared_compute_slowdown: float
    compute_slowdown: float
    communication_slowdown: float
    pair_s: float = 0.0
    behind_s: float = 0.0
    unit_s: float = 0.0
    node_spread: float = 0.0
    graph_passes: float = 0.0
    channel_multiprocessors: float = 0.0
    tail_share: float = 0.0
    late_kernels: float = 0.0
    memory_passes: float = 0.0
    nvlink_slowdown: float = 1.0
    pcie_slowdown: float = 1.0
    staged_slowdown: float = 1.0
    staged_net_slowdown: float = 1.0
    net_slowdown: float = 1.0
    codecs: tuple[tuple[str, float], ...] = ()
    given: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls,
        backend: str,
        calibration: Calibration | None,
        device: str | AchievedGpu | None = None,
        *,
        terms: bool = False,
        scale_host: float = 1.0,
    ) -> Costs:
        """Return the costs in `calibration`, and the backend's priors for what it lacks.

        Args:
            device: GPU, or its name, whose memory bandwidth bounds copies, where none was measured: whichever backend
                sends a bucket, a kernel fills it.
            terms: whether they are numbers that know what is made of them.
            scale_host: factor on what the host spends.
        """
        values = {constant.name: constant.value for constant in DDP_PRIORS[backend]}
        gpu = GPUS.get(device) if isinstance(device, str) else device
        if gpu is not None:
            # What is known of the devices of a GPU's generation stands in place of the priors, which are V100's.
            for known_devices in (DEVICES, MODULES if gpu.spec.nvlinks else {}) if backend == "nccl" else ():
                of_generation = known_devices.get(gpu.spec.sm or 0, {})
                values |= {f"{backend}.ddp.{name}": value for name, value in of_generation.items()}
            values[f"{backend}.ddp.copy_Bps"] = gpu.achieved_Bps / 2
            values[f"{backend}.ddp.copy_s"] = KERNEL_S
        known = {} if calibration is None else calibration.constants
        fitted = {name: c.value for name, c in known.items() if c.fitted}
        found = {name: value for name, value in fitted.items() if name in values}
        own = {name.removeprefix(f"{backend}.ddp."): value for name, value in (values | found).items()}
        own |= {name: own[name] * scale_host for name in _ON_HOST if name in own}
        codecs = [
            (c.name.removeprefix(f"{backend}.ddp."), fitted[c.name]) for c in CODEC_PRIORS[backend] if c.name in fitted
        ]
        given = frozenset(name.removeprefix(f"{backend}.ddp.") for name in found)
        costs = cls(**own, codecs=tuple(codecs), given=given)
        if not terms:
            return costs
        linear: dict[str, Any] = {name: Linear.of(name, getattr(costs, name)) for name in TIMES}
        return replace(costs, **linear, copy_Bps=Rate(costs.copy_Bps, "copy_Bps"))

    def codec(self, scheme: str, *, one_thread: bool) -> Roofline:
        """Return what kernels and bytes of a compression scheme cost; as copies do where that was not measured.

        Args:
            scheme: its name; what stands before the colon counts.
            one_thread: whether the host's time is the computation, so that a kernel is an operator call.
        """
        family, known = scheme.partition(":")[0], dict(self.codecs)
        return Roofline(
            launch_s=known.get(f"{family}_kernel_s", self.hook_s if one_thread else self.copy_s),
            memory_bandwidth=known.get(f"{family}_Bps", 2 * self.copy_Bps),
        )

    @property
    def compute_slowdown_fixed(self) -> bool:
        """Whether the factor on computing time was measured or given, or collectives take nothing of a GPU."""
        return "compute_slowdown" in self.given or not (self.channel_multiprocessors > 0 or self.memory_passes > 0)

    def entering_s(self, kernel_s: float) -> float:
        """Return what the start of a collective takes from computation whose kernels take `kernel_s`.

        However short the collective, the kernel that it comes upon takes a wave more.
        """
        return self.enter_s if "enter_s" in self.given else self.tail_share * kernel_s

    def slowdown_of(self, hops: Mapping[str, float]) -> float:
        """Return the factor on the time of a collective over `hops` while some rank computes.

        Each kind of hop takes longer by a factor of its own; the slowest then sets the pace.

        Args:
            hops: by kind, what a byte takes over what it takes on the slowest of them.
        """
        if "communication_slowdown" in self.given:
            return self.communication_slowdown
        by_group = {
            NVLINK: self.nvlink_slowdown,
            NVSWITCH: self.nvlink_slowdown,
            XGMI: self.nvlink_slowdown,
            PCIE: self.pcie_slowdown,
            HOST: self.staged_slowdown,
            HOST_TO_NIC: self.staged_net_slowdown,
            NET: self.net_slowdown,
        }
        return max((share * by_group[kind] for kind, share in hops.items()), default=1.0)

    def copies_s(self, tensors: int, size_bytes: float) -> float:
        """Return the device time of copying `tensors` tensors of `size_bytes` in all."""
        return tensors * self.copy_s + size_bytes / self.copy_Bps


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
        gpu: that encodes; None is a CPU, or a GPU that is not in the catalogue.
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

    def encoding(self, bucket: tuple[int, ...]) -> Encoding:
        """Return how a bucket is encoded.

        Args:
            bucket: registration indices.
        """
        if (known := self._known.get(bucket)) is not None:
            return known
        parameters, time_s = [self._parameters[index] for index in bucket], self._processor.time_s
        works = self._scheme.works(parameters, self._world_size)
        sizes = [round(m.allreduce_bytes(self._world_size)) for m in self._scheme.messages(parameters)]
        pauses = [0.0, *map(time_s, works[1:-1])]
        host_s = sum(work.kernels for work in works) * self._kernel_host_s
        messages = tuple(zip(pauses, sizes, strict=True))
        encoding = self._known[bucket] = Encoding(messages, time_s(works[0]), time_s(works[-1]), host_s)
        return encoding
