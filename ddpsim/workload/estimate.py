"""Workloads that nobody measured: a model's operators put on a GPU by a roofline, and saying so.

Each operator takes the longer of its arithmetic at the achieved share of peak and its memory traffic at the achieved
share of bandwidth (Williams et al., "Roofline", CACM 2009), but no less than a kernel's own minimum. The host launches
one operator after the other; the device runs each when it is free and the operator is launched. Where a one-GPU step
has been published, device times are scaled to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.errors import WorkloadError
from ddpsim.workload.anchors import Anchor, RooflineFactors, check_floor, of_step, pace_of
from ddpsim.workload.compiled import COMPILED, was_compiled
from ddpsim.workload.forward_use import ForwardUse
from ddpsim.workload.fusing import COMPILED_AS, INDUCTOR_GRAPHS, CompiledAs, fused
from ddpsim.workload.gpus import AchievedGpu
from ddpsim.workload.operators import NARROW, Activations, Operator, StepOperators
from ddpsim.workload.optimizers import ADDITION, OPTIMIZERS, Optimizer, optimizer_of_kind
from ddpsim.workload.profile import Buffer, Phase, Workload
from ddpsim.workload.timeline import Timeline

OPTIMIZER = OPTIMIZERS["momentum"]
"""Of the shipped workloads: SGD with momentum, `foreach`."""

WINOGRAD = 2.25
"""By so much fewer multiplications a 3x3 convolution in fp32 may do with than are counted (Lavin and Gray 2016)."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A shape is a model's training step as operators, without any time in it.

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
        compiled: whether torch.compile compiles the step; operators are counted as if it did not.
        compiler: of `fusing.COMPILERS`, by which a compiled step is priced; None is operator by operator.
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
    compiled: bool = False
    compiler: str | None = None

    @classmethod
    def of(cls, workload: Workload, operators: StepOperators) -> ModelShape:
        """Return the step of a workload that keeps its operators, as it was counted or of another batch."""
        dtypes = operators.dtypes or [parameter.dtype for parameter in workload.parameters]
        compiled = CompiledAs.of(workload.provenance)
        return cls(
            workload.name.partition("@")[0],
            operators.batch_size,
            operators.sample,
            tuple(replace(p, dtype=dtype) for p, dtype in zip(workload.parameters, dtypes, strict=True)),
            workload.buffers,
            operators.forward,
            operators.backward,
            operators.forward_use,
            operators.activations,
            workload.optimizer_kind,
            operators.synchronises,
            operators.counted,
            was_compiled(workload),
            None if compiled is None else compiled.compiler,
        )

    def operators(self, parameters: Sequence[Parameter]) -> StepOperators:
        """Return the step's operators, to be kept by a workload with `parameters`."""
        dtypes = tuple(parameter.dtype for parameter in self.parameters)
        return StepOperators(
            self.batch_size,
            self.sample,
            self.forward,
            self.backward,
            self.forward_use,
            self.activations,
            None if dtypes == tuple(parameter.dtype for parameter in parameters) else dtypes,
            self.synchronises,
            self.counted,
        )


def estimate(
    shape: ModelShape,
    gpu: AchievedGpu,
    precision: str,
    anchors: Anchor | Sequence[Anchor] | None = None,
    optimizer: Optimizer | None = None,
    pace: RooflineFactors | None = None,
    accumulate: int = 1,
) -> Workload:
    """Return one iteration of `shape` on `gpu`, without jitter, marked as estimated.

    Args:
        shape: the step's operators.
        gpu: what it is to run on.
        precision: of the computation.
        anchors: measured times that the estimate is scaled to.
        optimizer: is not scaled with the rest where it is given; None is SGD with momentum, which is.
        pace: of another estimate for the same GPU, that has been scaled to a measured time; None is the roofline's.
        accumulate: micro-batches of the measured step; the estimate is of one.

    Raises:
        WorkloadError: a precision the GPU lacks, a step without any gradient, or an anchor that the GPU cannot reach.
    """
    if precision not in gpu.peak_flops:
        remedy = f"use one of {', '.join(gpu.peak_flops)}"
        raise WorkloadError(f"{gpu.name} has no figures for precision {precision!r}", place=shape.name, remedy=remedy)
    parameters = tuple(replace(p, dtype=_dtype(p, precision), device="cuda:0") for p in shape.parameters)
    own = optimizer_of_kind(shape.optimizer_kind)
    used, targets = optimizer or OPTIMIZER, [anchors] if isinstance(anchors, Anchor) else list(anchors or ())
    counted, shape = shape, _as_compiled(shape, precision)
    works = roofline_s(shape, gpu, precision)
    works.append(used.works_s(parameters, gpu.achieved_Bps, gpu.achieved.kernel_s))
    floors_s = _floors_s(shape, gpu, precision, used, parameters)
    check_floor(targets, floors_s, shape.name, accumulate)
    timeline = Timeline(works, [o.gradients for o in shape.backward], used.host_s(len(parameters)))
    timeline.graphs = shape.compiler == INDUCTOR_GRAPHS
    added_s = (accumulate - 1) * sum(ADDITION.works_s(parameters, gpu.achieved_Bps, gpu.achieved.kernel_s))
    pace = pace or pace_of(
        of_step(list(map(sum, works)), accumulate),
        sum(of_step(timeline.host_s, accumulate)),
        [anchor.of_step(accumulate, added_s) for anchor in targets],
        keep_optimizer=optimizer is not None,
        place=shape.name,
    )
    timeline.works = [[work * factor for work in phase] for phase, factor in zip(works, pace.phases, strict=True)]
    timeline.host_factor = pace.host
    workload = _workload(shape, gpu, precision, parameters, timeline, targets)
    provenance = _provenance(shape, gpu, precision, targets, pace, optimizer)
    if shape.compiler is not None:
        provenance = {**provenance, COMPILED_AS: _compiled_as(counted, gpu, precision, timeline, pace).document()}
    return replace(
        workload,
        operators=counted.operators(parameters),
        provenance=provenance,
        arithmetic_share=_arithmetic_share(shape, gpu, precision, works),
        optimizer_kind=shape.optimizer_kind if optimizer in (None, own) else used.kind,
    )


def _as_compiled(shape: ModelShape, precision: str) -> ModelShape:
    """Return `shape` as its compiler runs it in `precision`; one that is run operator by operator is unchanged."""
    if shape.compiler is None:
        return shape
    forward, backward = fused(shape.forward, precision), fused(shape.backward, precision)
    uses = shape.forward_use and tuple(None if use is None else forward.launch_of[use] for use in shape.forward_use)
    return replace(shape, forward=forward.operators, backward=backward.operators, forward_use=uses)


def _compiled_as(
    counted: ModelShape, gpu: AchievedGpu, precision: str, priced: Timeline, pace: RooflineFactors
) -> CompiledAs:
    """Return how the step that was `priced` differs from the one that was `counted`, in eager mode at the same pace."""
    works = [*roofline_s(counted, gpu, precision), []]
    eager = Timeline(works, [o.gradients for o in counted.backward], priced.optimizer_host_s, priced.host_factor)
    device_s = [sum(work) * factor for work, factor in zip(works, pace.phases, strict=True)]
    return CompiledAs(
        str(counted.compiler),
        priced.launches,
        eager.launches,
        sum(map(sum, priced.works)),
        sum(device_s) + sum(priced.works[2]),
        sum(priced.host_s),
        sum(eager.host_s),
    )


def _dtype(parameter: Parameter, precision: str) -> str:
    return "bfloat16" if precision == "bf16" and parameter.dtype == "float32" else parameter.dtype


def roofline_s(shape: ModelShape, gpu: AchievedGpu, precision: str) -> list[list[float]]:
    """Return the device's time of each operator of forward, and of backward."""
    return [[operator_s(operator, gpu, precision) for operator in phase] for phase in (shape.forward, shape.backward)]


def operator_s(operator: Operator, gpu: AchievedGpu, precision: str) -> float:
    """Return the device's time of one operator: the longest of its traffic, its arithmetic and a kernel's minimum."""
    narrow = precision in NARROW and not operator.fp32
    traffic = operator.traffic_bytes / 2 if narrow else operator.traffic_bytes
    traffic *= gpu.achieved.traffic_factor(operator.kind, precision)
    return max(traffic / gpu.achieved_Bps, _arithmetic_s(operator, gpu, precision), gpu.achieved.kernel_s)


def _arithmetic_s(operator: Operator, gpu: AchievedGpu, precision: str) -> float:
    if not operator.flops:
        return 0.0
    return operator.flops / gpu.achieved_flops(operator.kind, precision)


def _floors_s(
    shape: ModelShape, gpu: AchievedGpu, precision: str, optimizer: Optimizer, parameters: Sequence[Parameter]
) -> list[float]:
    """Return what forward, backward and optimizer take at least, whatever stays in caches and however it is fused."""
    peak = gpu.peak_flops[precision]

    def arithmetic_s(operators: Sequence[Operator]) -> float:
        fewer = {"conv": WINOGRAD} if precision == "fp32" else {}
        return sum(operator.flops / fewer.get(operator.kind, 1.0) for operator in operators) / peak

    size_bytes = sum(parameter.size_bytes for parameter in parameters)
    moved = min(optimizer.passes, OPTIMIZERS["sgd"].passes) * size_bytes
    return [arithmetic_s(shape.forward), arithmetic_s(shape.backward), moved / gpu.memory_Bps]


def _arithmetic_share(shape: ModelShape, gpu: AchievedGpu, precision: str, works: Sequence[Sequence[float]]) -> float:
    """Return the share of a step that its arithmetic bounds, on the device's clock rather than its memory's."""
    operators = zip((*shape.forward, *shape.backward), (*works[0], *works[1]), strict=True)
    bound = sum(work for operator, work in operators if _arithmetic_s(operator, gpu, precision) >= work)
    return round(bound / sum(map(sum, works)), 3)


def _workload(
    shape: ModelShape,
    gpu: AchievedGpu,
    precision: str,
    parameters: tuple[Parameter, ...],
    timeline: Timeline,
    anchors: Sequence[Anchor],
) -> Workload:
    published = tuple(dict.fromkeys(point for anchor in anchors for point in anchor.synchronises))
    synchronises = published or shape.synchronises
    timeline.run(wait="after_optimizer" in synchronises)
    hook, ready = (np.full((1, len(parameters)), np.nan) for _ in range(2))
    for index, (hook_s, ready_s) in timeline.gradients.items():
        hook[0, index], ready[0, index] = hook_s, ready_s

    def phase(index: int) -> Phase:
        return Phase(np.array([round(timeline.host_s[index], 9)]), np.array([round(sum(timeline.works[index]), 9)]))

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
        forward_use_s=_forward_use(shape, timeline),
        activations_bytes=None if shape.activations is None else shape.activations.in_precision(precision),
        optimizer_kind=shape.optimizer_kind,
    )


def _forward_use(shape: ModelShape, timeline: Timeline) -> ForwardUse | None:
    if shape.forward_use is None:
        return None
    never = (np.nan, np.nan)
    times = [never if number is None else timeline.forward[number] for number in shape.forward_use]
    host, device = np.array(times).round(9).T
    return ForwardUse(host, device)


def _provenance(
    shape: ModelShape,
    gpu: AchievedGpu,
    precision: str,
    anchors: Sequence[Anchor],
    pace: RooflineFactors,
    optimizer: Optimizer | None,
) -> Mapping[str, object]:
    kinds = sorted({operator.kind for operator in (*shape.forward, *shape.backward) if operator.flops})
    shares = {kind: gpu.achieved.share(kind, precision) for kind in kinds}
    return {
        "how": "estimated: roofline of the model's operators" + (", scaled to a published step" if anchors else ""),
        "gpu": gpu.source,
        "achieved_shares": {**shares, "memory": gpu.achieved.memory_share},
        "shares_source": gpu.achieved.source,
        "scaled_to": "; ".join(anchor.source for anchor in anchors) or None,
        "scale": round(pace.scale, 4),
        "sample": shape.sample,
        "host": "prior: eager mode, a fixed launch cost an operator"
        if shape.compiler is None
        else f"prior: eager mode's launch cost for each launch of {shape.compiler}",
        "flops": sum(operator.flops for operator in (*shape.forward, *shape.backward)),
        **({} if shape.counted is None else {"counted": shape.counted}),
        **({COMPILED: True} if shape.compiled else {}),
        **({"pace": pace.document()} if optimizer is not None or pace.host != 1 else {}),
        **({} if optimizer is None else {"optimizer": optimizer.name}),
        **({} if gpu.shipped else {"gpu_figures": gpu.figures()}),
    }
