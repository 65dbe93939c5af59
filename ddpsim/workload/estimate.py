"""Workloads that nobody measured: a model's operators put on a GPU by a roofline, and saying so.

Each operator takes the longer of its arithmetic at the achieved share of peak and its memory traffic at the achieved
share of bandwidth (Williams et al., "Roofline", CACM 2009), but no less than a kernel's own minimum. The host launches
one operator after the other; the device runs each when it is free and the operator is launched. Where a one-GPU step
has been published, device times are scaled to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.errors import WorkloadError
from ddpsim.workload.gpus import Gpu
from ddpsim.workload.profile import Buffer, ForwardUse, Phase, Workload

PHASES = ("forward", "backward")
NARROW = ("amp", "bf16")
"""Precisions of 16-bit tensors."""

FORWARD_LAUNCH_S = 30e-6
BACKWARD_LAUNCH_S = 40e-6
"""Host time of one operator in eager mode. 60 us is an upper bound forward: ResNet-50's inference takes 10.4 ms on a
V100 at batch sizes 1 to 4 (NVIDIA DeepLearningExamples, ResNet-50 v1.5), with 171 operators. Backward has no Python,
but its convolutions launch twice."""

ACCUMULATE_S = 2e-6
"""Host time of autograd's node that hands one gradient to its parameter, before the hook."""

OPTIMIZER_LAUNCH_S = 300e-6
OPTIMIZER_PARAMETER_S = 4e-6
"""Host time of a `foreach` SGD step with momentum: fixed, and for each parameter."""

LAUNCH_LATENCY_S = 5e-6
"""From the host's launch to the start of a kernel on an idle device."""

OPTIMIZER_TRAFFIC = 5
"""SGD with momentum reads parameter, gradient and momentum and writes parameter and momentum."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a training step.

    Attributes:
        kind: `conv`, `grouped_conv`, `gemm` or `memory` (everything else); picks the achieved share of peak.
        flops: floating-point operations, a multiply-add as two.
        traffic_bytes: read from and written to device memory in fp32.
        fp32: whether autocast keeps it in fp32 (norms of transformers, softmax, losses).
        gradients: registration indices of the parameters whose gradient is complete when it is.
    """

    kind: str
    flops: float
    traffic_bytes: float
    fp32: bool = False
    gradients: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of tensors at the peak of a step, beside parameters, gradients, buffers, optimizer state and the batch.

    Attributes:
        narrow_bytes: of floating-point tensors, in fp32, that 16-bit precisions halve.
        wide_bytes: of all others: integers, masks, and what autocast keeps in fp32.
    """

    narrow_bytes: int
    wide_bytes: int

    def in_precision(self, precision: str) -> int:
        """Return the bytes of a step in `precision`."""
        return self.wide_bytes + (self.narrow_bytes // 2 if precision in NARROW else self.narrow_bytes)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's training step as operators, without any time in it.

    Attributes:
        name: the model's.
        batch_size: samples the operators are counted for.
        sample: what a sample is.
        parameters, buffers: in registration order.
        forward, backward: operators in launch order; the loss belongs to forward.
        forward_use: by registration index the number of the forward operator that first reads the parameter; None
            where forward reads it nowhere, or where it is not known.
        activations: at the peak; None where they are not known.
        optimizer_kind: `sgd`, `momentum`, or torch's class in small letters; behind it `-fused`, or `-foreach`, which
            is torch's default on a GPU; several joined by a comma; `+clip` last where gradients are clipped before.
            None where it is not known.
        synchronises: where the host waits for the device in each step.
        counted: how the operators were counted, where not as the shipped models' are.
    """

    name: str
    batch_size: int
    sample: str
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    forward_use: tuple[int | None, ...] | None = None
    activations: Activations | None = None
    optimizer_kind: str | None = None
    synchronises: tuple[str, ...] = ()
    counted: str | None = None


@dataclass(frozen=True, slots=True)
class Anchor:
    """A published one-GPU time.

    Attributes:
        phase: `step`, or `backward` where only that was published.
        seconds: on the device.
        synchronises: as the published benchmark waits for the device.
        source: where it was published.
    """

    phase: str
    seconds: float
    synchronises: tuple[str, ...]
    source: str


def estimate(shape: ModelShape, gpu: Gpu, precision: str, anchor: Anchor | None = None) -> Workload:
    """Return one iteration of `shape` on `gpu`, without jitter, marked as estimated.

    Raises:
        WorkloadError: a precision the GPU lacks, or a step without any gradient.
    """
    if precision not in gpu.peak_flops:
        remedy = f"use one of {', '.join(gpu.peak_flops)}"
        raise WorkloadError(f"{gpu.name} has no figures for precision {precision!r}", place=shape.name, remedy=remedy)
    parameters = tuple(replace(p, dtype=_dtype(p, precision), device="cuda:0") for p in shape.parameters)
    works = [[_work_s(operator, gpu, precision) for operator in getattr(shape, phase)] for phase in PHASES]
    works.append([OPTIMIZER_TRAFFIC * sum(p.size_bytes for p in parameters) / gpu.memory_Bps / gpu.memory_share])
    share = _arithmetic_share(shape, gpu, precision, works)
    factor = 1.0
    if anchor is not None:
        roofline = sum(map(sum, works)) if anchor.phase == "step" else sum(works[1])
        factor = anchor.seconds / roofline
        works = [[work * factor for work in phase] for phase in works]
    workload = _workload(shape, gpu, precision, parameters, works, anchor, factor)
    return replace(workload, arithmetic_share=share)


def _dtype(parameter: Parameter, precision: str) -> str:
    return "bfloat16" if precision == "bf16" and parameter.dtype == "float32" else parameter.dtype


def _work_s(operator: Operator, gpu: Gpu, precision: str) -> float:
    narrow = precision in NARROW and not operator.fp32
    traffic = operator.traffic_bytes / 2 if narrow else operator.traffic_bytes
    return max(traffic / (gpu.memory_Bps * gpu.memory_share), _arithmetic_s(operator, gpu, precision), gpu.kernel_s)


def _arithmetic_s(operator: Operator, gpu: Gpu, precision: str) -> float:
    if not operator.flops:
        return 0.0
    return operator.flops / (gpu.peak_flops[precision] * gpu.share(operator.kind, precision))


def _arithmetic_share(shape: ModelShape, gpu: Gpu, precision: str, works: Sequence[Sequence[float]]) -> float:
    """Return the share of a step that its arithmetic bounds, on the device's clock rather than its memory's."""
    operators = zip((*shape.forward, *shape.backward), (*works[0], *works[1]), strict=True)
    bound = sum(work for operator, work in operators if _arithmetic_s(operator, gpu, precision) >= work)
    return round(bound / sum(map(sum, works)), 3)


def _workload(
    shape: ModelShape,
    gpu: Gpu,
    precision: str,
    parameters: tuple[Parameter, ...],
    works: Sequence[Sequence[float]],
    anchor: Anchor | None,
    factor: float,
) -> Workload:
    timeline = _Timeline(shape, works)
    synchronises = anchor.synchronises if anchor else shape.synchronises
    timeline.run(wait="after_optimizer" in synchronises)
    hook, ready = (np.full((1, len(parameters)), np.nan) for _ in range(2))
    for index, (hook_s, ready_s) in timeline.gradients.items():
        hook[0, index], ready[0, index] = hook_s, ready_s

    def phase(index: int) -> Phase:
        return Phase(np.array([round(timeline.host_s[index], 9)]), np.array([round(sum(works[index]), 9)]))

    return Workload(
        name=f"{shape.name}@{gpu.name.lower()}-{precision}-b{shape.batch_size}",
        device=gpu.name,
        precision=precision,
        batch_size=shape.batch_size,
        threads=None,
        estimated=True,
        parameters=parameters,
        buffers=shape.buffers,
        forward=phase(0),
        backward=phase(1),
        optimizer=phase(2),
        gradient_hook_s=hook.round(9),
        gradient_ready_s=ready.round(9),
        synchronises=synchronises,
        provenance=_provenance(shape, gpu, precision, anchor, factor),
        forward_use_s=_forward_use(shape, timeline),
        activations_bytes=None if shape.activations is None else shape.activations.in_precision(precision),
        optimizer_kind=shape.optimizer_kind,
    )


def _forward_use(shape: ModelShape, timeline: _Timeline) -> ForwardUse | None:
    if shape.forward_use is None:
        return None
    never = (np.nan, np.nan)
    times = [never if number is None else timeline.forward[number] for number in shape.forward_use]
    host, device = np.array(times).round(9).T
    return ForwardUse(host, device)


class _Timeline:
    """Host and device of one process, operator by operator."""

    def __init__(self, shape: ModelShape, works: Sequence[Sequence[float]]) -> None:
        self.gradients: dict[int, tuple[float, float]] = {}
        self.forward: list[tuple[float, float]] = []
        self.host_s = [
            FORWARD_LAUNCH_S * len(shape.forward),
            BACKWARD_LAUNCH_S * len(shape.backward) + ACCUMULATE_S * len(shape.parameters),
            OPTIMIZER_LAUNCH_S + OPTIMIZER_PARAMETER_S * len(shape.parameters),
        ]
        self._shape, self._works = shape, works
        self._host = self._device = 0.0

    def run(self, *, wait: bool) -> None:
        """Run until the steady state, two iterations; the second one's moments are kept."""
        for _ in range(2):
            self._forward()
            self._backward()
            self._launch(self._works[2], self.host_s[2])
            if wait:
                self._host = max(self._host, self._device)

    def _forward(self) -> None:
        moments = [(self._host, self._launch([work], FORWARD_LAUNCH_S)) for work in self._works[0]]
        host_start, device_start = moments[0] if moments else (0.0, 0.0)
        self.forward = [(host - host_start, device - device_start) for host, device in moments]

    def _backward(self) -> None:
        host_start, device_start = self._host, None
        for operator, work in zip(self._shape.backward, self._works[1], strict=True):
            begin = self._launch([work], BACKWARD_LAUNCH_S)
            device_start = begin if device_start is None else device_start
            for index in operator.gradients:
                self._host += ACCUMULATE_S
                self.gradients[index] = (self._host - host_start, self._device - device_start)

    def _launch(self, works: Sequence[float], launch_s: float) -> float:
        begin = self._device
        for work in works:
            self._host += launch_s
            begin = max(self._device, self._host + LAUNCH_LATENCY_S)
            self._device = begin + work
        return begin


def _provenance(
    shape: ModelShape, gpu: Gpu, precision: str, anchor: Anchor | None, factor: float
) -> Mapping[str, object]:
    kinds = sorted({operator.kind for operator in (*shape.forward, *shape.backward) if operator.flops})
    shares: Callable[[str], float] = lambda kind: gpu.share(kind, precision)  # noqa: E731
    counted: Mapping[str, object] = {} if shape.counted is None else {"counted": shape.counted}
    return {
        "how": "estimated: roofline of the model's operators" + (", scaled to a published step" if anchor else ""),
        "gpu": gpu.source,
        "achieved_shares": {**{kind: shares(kind) for kind in kinds}, "memory": gpu.memory_share},
        "shares_source": gpu.shares_source,
        "scaled_to": None if anchor is None else anchor.source,
        "scale": round(factor, 4),
        "sample": shape.sample,
        "host": "prior: eager mode, a fixed launch cost an operator",
        "flops": sum(operator.flops for operator in (*shape.forward, *shape.backward)),
        **counted,
    }
