"""Workloads that were not measured: a model's operators timed on a GPU by a roofline, and marked as estimated.

Each operator takes the longer of its arithmetic at the achieved share of peak and its memory traffic at the achieved
share of bandwidth (Williams et al., "Roofline", CACM 2009), but no less than a kernel's own minimum. The host launches
one operator after the other; the device runs each when it is free and the operator is launched. Where a one-GPU step
has been published, device times are scaled to it.

Start at `estimate`; `ModelShape` is what goes in, `Timeline` (`timeline.py`) runs host and device side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import FrozenParameter
from ddpsim.common.errors import WorkloadError
from ddpsim.workload.anchors import (
    TERM_SHARES,
    Anchor,
    RooflineFactors,
    check_floor,
    find_repeat_spread,
    pace_of,
    sum_to_step,
)
from ddpsim.workload.expert_parallel import ExpertStep, experts_on_ranks
from ddpsim.workload.fusing import COMPILED_AS, INDUCTOR_GRAPHS, CompiledAs, fuse_operators
from ddpsim.workload.gpus import AchievedGpu, check_peak
from ddpsim.workload.layer_messages import ExpertParallel, LayerMessage, TensorParallel, in_backward, in_forward
from ddpsim.workload.operators import Activations, Operator, PhasesUnderAutocast, StepOperators
from ddpsim.workload.optimizers import ADDITION, OPTIMIZERS, Optimizer, optimizer_of_kind
from ddpsim.workload.profile import LEFT_OUT, Buffer, ForwardUse, Phase, Workload
from ddpsim.workload.replayed import COMPILED, was_compiled
from ddpsim.workload.roofline import OPTIMIZER_TERM, arithmetic_share, floors_s, roofline_s, shares_of_terms
from ddpsim.workload.tensor_parallel import RankStep, on_ranks
from ddpsim.workload.timeline import BACKWARD_LAUNCH_S, EAGER_LAUNCH_S, FORWARD_LAUNCH_S, Timeline

OPTIMIZER = OPTIMIZERS["momentum"]
"""Of the shipped workloads: SGD with momentum, `foreach`."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's training step as operators, without any time in it.

    Attributes:
        name: the model's.
        batch_size: samples the operators are counted for.
        sample: what a sample is.
        parameters, buffers: in registration order.
        forward, backward: operators in launch order; the loss belongs to forward.
        forward_use: by registration index, of frozen parameters behind the others, the number of the forward operator
            that first reads the parameter; None where forward reads it nowhere, or where it is not known.
        activations: at the peak; None where they are not known.
        optimizer_kind: `sgd`, `momentum`, or torch's class in small letters; behind it `-fused`, or `-foreach`, which
            is torch's default on a GPU; several joined by a comma; `+clip` last where gradients are clipped before.
            None where it is not known.
        synchronises: where the host waits for the device in each step.
        counted: how the operators were counted, where not as the shipped models' are.
        compiled: whether torch.compile compiles the step; operators are counted as if it did not.
        compiler: of `fusing.COMPILERS`, by which a compiled step is priced; None is operator by operator.
        amp: the operators that autocast dispatches; None where it was not counted.
        autocast_dtype: that the step's autocast casts to, as `Workload` has it.
        left_out: what of the step is not priced, a sentence each.
        frozen: parameters that take no gradient, as `Workload` has them.
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
    amp: PhasesUnderAutocast | None = None
    autocast_dtype: str | None = None
    left_out: tuple[str, ...] = ()
    frozen: tuple[FrozenParameter, ...] = ()

    @classmethod
    def of(cls, workload: Workload, operators: StepOperators) -> ModelShape:
        """Return the step of a workload that keeps its operators, as it was counted or of another batch."""
        dtypes, count = operators.dtypes or _dtypes(workload.all_parameters), len(workload.parameters)
        compiled = CompiledAs.of(workload.provenance)
        return cls(
            workload.name.partition("@")[0],
            operators.batch_size,
            operators.sample,
            tuple(replace(p, dtype=dtype) for p, dtype in zip(workload.parameters, dtypes[:count], strict=True)),
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
            operators.amp,
            workload.autocast_dtype,
            workload.left_out,
            tuple(replace(p, dtype=dtype) for p, dtype in zip(workload.frozen, dtypes[count:], strict=True)),
        )

    def operators(self, parameters: Sequence[Parameter]) -> StepOperators:
        """Return the step's operators, to be kept by a workload with `parameters`, frozen ones behind the others."""
        dtypes = _dtypes((*self.parameters, *self.frozen))
        return StepOperators(
            self.batch_size,
            self.sample,
            self.forward,
            self.backward,
            self.forward_use,
            self.activations,
            None if dtypes == _dtypes(parameters) else dtypes,
            self.synchronises,
            self.counted,
            self.amp,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """What an estimate goes by besides the step's operators.

    Attributes:
        anchors: measured times that the estimate is scaled to.
        optimizer: of the step, whose time keeps the roofline's when the rest is scaled; None is SGD with momentum,
            which is scaled like the rest.
        pace: of another estimate for the same GPU, that has been scaled to a measured time; None is the roofline's.
        accumulate: micro-batches of the measured step; the estimate is of one.
        without: terms of `roofline.SWITCHES` that take no device time.
        tensor_parallel: ranks of which the estimate is of one's part of the step; a measured time is of the whole's.
        expert_parallel: ranks that have some of the experts each, likewise.
    """

    anchors: Sequence[Anchor] = ()
    optimizer: Optimizer | None = None
    pace: RooflineFactors | None = None
    accumulate: int = 1
    without: Collection[str] = ()
    tensor_parallel: int = 1
    expert_parallel: int = 1


def estimate(shape: ModelShape, gpu: AchievedGpu, precision: str, options: EstimateOptions | None = None) -> Workload:
    """Return one iteration of `shape` on `gpu`, without jitter, marked as estimated.

    Args:
        shape: the step's operators.
        gpu: what it is to run on.
        precision: of the computation.
        options: what else is known of it; None is nothing.

    Raises:
        UnknownNameError: no such term.
        WorkloadError: a precision the GPU lacks, a step without any gradient, an anchor that the GPU cannot reach, or
            a step that several ranks cannot share.
    """
    options = options or EstimateOptions()
    optimizer, accumulate, without = options.optimizer, options.accumulate, options.without
    check_peak(gpu, precision, shape.autocast_dtype, shape.name, f"use one of {', '.join(gpu.peak_flops)}")
    own = optimizer_of_kind(shape.optimizer_kind)
    used, targets = optimizer or OPTIMIZER, list(options.anchors)
    # `counted` stays the step as it was counted, operator by operator: a file keeps it, so that it can be estimated
    # again for another GPU, batch or precision. `shape` is from here on the step as it runs: fused or cast, then cut
    # to one rank's part.
    counted, eager_gpu = shape, gpu
    shape, gpu = convert_to_run(shape, gpu, precision), gpu if shape.compiler is None else gpu.with_fused()
    part = _part_of(shape, options, precision)
    if part is not None:
        uses = shape.forward_use
        if isinstance(part, ExpertStep):
            activations, uses = part.activations(shape.activations), part.forward_use
        else:
            activations = part.activations(shape.activations, options.tensor_parallel)
        # The cut was made on trained and frozen parameters in one row; a `Workload` has them apart, and a frozen one
        # says how many trained ones are registered before it: counted anew, without those of other ranks' experts.
        trained = tuple(each for each in part.parameters if not isinstance(each, FrozenParameter))
        here = {each.name for each in trained}
        shape = replace(
            shape,
            parameters=trained,
            frozen=tuple(
                replace(each, before=sum(p.name in here for p in shape.parameters[: each.before]))
                for each in part.parameters
                if isinstance(each, FrozenParameter)
            ),
            forward=part.forward,
            backward=part.backward,
            forward_use=uses,
            activations=activations,
        )
    parameters, frozen = _as_run(shape.parameters, shape.frozen, precision)
    shape = replace(shape, frozen=frozen)
    phases = (shape.forward, shape.backward)
    works = roofline_s(phases, gpu, precision, without)
    update = used.works_s(parameters, gpu.achieved_Bps, gpu.achieved.kernel_s)
    works.append([0.0] * len(update) if OPTIMIZER_TERM in without else update)
    # Before anything is scaled: a time below the floor means a wrong unit, batch or GPU, and any factor would hide
    # that.
    check_floor(targets, floors_s(phases, gpu, precision, used, parameters), shape.name, accumulate)
    timeline = Timeline(works, [o.gradients for o in shape.backward], used.host_s(len(parameters)))
    timeline.graphs = shape.compiler == INDUCTOR_GRAPHS
    timeline.launch_s = _launch_s(gpu)
    # Measured times are of a whole step of the optimizer, works of one micro-batch: what adding the gradients of the
    # others takes is in the time, and in none of the operators that are scaled to it.
    added_s = (accumulate - 1) * sum(ADDITION.works_s(parameters, gpu.achieved_Bps, gpu.achieved.kernel_s))
    pace = options.pace or pace_of(
        sum_to_step(list(map(sum, works)), accumulate),
        sum(sum_to_step(timeline.host_s, accumulate)),
        [anchor.scale_to_step(accumulate, added_s) for anchor in targets],
        keep_optimizer=optimizer is not None,
        place=shape.name,
    )
    # The pace compares sums of the roofline's own times, so the time line is scaled only now. What the host hides of
    # the device, and when each gradient is there, follows from it in `_workload`.
    timeline.works = [[work * factor for work in phase] for phase, factor in zip(works, pace.phases, strict=True)]
    timeline.host_factor = pace.host
    workload = _workload(shape, gpu, precision, parameters, timeline, targets)
    provenance = _provenance(shape, gpu, precision, targets, pace, optimizer)
    if shape.compiler is not None:
        provenance = {
            **provenance,
            COMPILED_AS: _compare_compiled(counted, eager_gpu, precision, timeline, pace, used, without).document(),
        }
    if gpu.achieved.eager:
        provenance[TERM_SHARES] = shares_of_terms(phases, gpu, precision, works, without)
    if without:
        provenance["without"] = sorted(without)
    return replace(
        workload,
        tensor=TensorParallel(options.tensor_parallel, _messages(part, timeline))
        if isinstance(part, RankStep)
        else None,
        experts=_experts(part, options.expert_parallel, timeline) if isinstance(part, ExpertStep) else None,
        operators=counted.operators(workload.all_parameters) if part is None else None,
        provenance=provenance,
        arithmetic_share=arithmetic_share(phases, gpu, precision, works),
        optimizer_kind=shape.optimizer_kind if optimizer in (None, own) else used.kind,
    )


def _part_of(shape: ModelShape, options: EstimateOptions, precision: str) -> RankStep | ExpertStep | None:
    """Return what one of several ranks computes of a step; None of a whole one."""
    ranks = options.tensor_parallel * options.expert_parallel
    if ranks == 1:
        return None
    cut = on_ranks if options.tensor_parallel > 1 else experts_on_ranks
    try:
        everything = (*shape.parameters, *shape.frozen)
        return cut(shape.forward, shape.backward, shape.forward_use, everything, ranks, precision)
    except WorkloadError as error:
        error.at(shape.name)


def _experts(part: ExpertStep, ranks: int, timeline: Timeline) -> ExpertParallel:
    trained = frozenset(i for i in part.experts if not isinstance(part.parameters[i], FrozenParameter))
    return ExpertParallel(ranks, _messages(part, timeline), trained, part.layers)


def _messages(part: RankStep | ExpertStep, timeline: Timeline) -> tuple[LayerMessage, ...]:
    """Return what the ranks send each other in a step of `timeline`."""
    forward = in_forward(part.forward_messages, timeline.works[0])
    backward = in_backward(part.backward_messages, timeline.works[1], timeline.completes)
    return (*forward, *backward)


def convert_to_run(shape: ModelShape, gpu: AchievedGpu, precision: str) -> ModelShape:
    """Return `shape` with the kernels that run in `precision`: its compiler's, or those that autocast dispatches."""
    if shape.compiler is None:
        if shape.amp is None or precision != "amp" or not gpu.achieved.eager:
            return shape
        amp = shape.amp
        return replace(shape, forward=amp.forward, backward=amp.backward, forward_use=amp.forward_use)
    forward, backward = fuse_operators(shape.forward, precision), fuse_operators(shape.backward, precision)
    uses = shape.forward_use and tuple(None if use is None else forward.launch_of[use] for use in shape.forward_use)
    return replace(shape, forward=forward.operators, backward=backward.operators, forward_use=uses)


def _compare_compiled(
    counted: ModelShape,
    gpu: AchievedGpu,
    precision: str,
    priced: Timeline,
    pace: RooflineFactors,
    optimizer: Optimizer,
    without: Collection[str],
) -> CompiledAs:
    """Return how the step that was `priced` differs from the one that was `counted`, on `gpu` as an eager step is."""
    shape = convert_to_run(replace(counted, compiler=None), gpu, precision)
    parameters = _as_run(shape.parameters, shape.frozen, precision)[0]
    works = [*roofline_s((shape.forward, shape.backward), gpu, precision, without), []]
    if OPTIMIZER_TERM not in without:
        works[2] = optimizer.works_s(parameters, gpu.achieved_Bps, gpu.achieved.kernel_s)
    eager = Timeline(works, [o.gradients for o in shape.backward], priced.optimizer_host_s, priced.host_factor)
    eager.launch_s = _launch_s(gpu)
    device_s = [sum(work) * factor for work, factor in zip(works, pace.phases, strict=True)]
    return CompiledAs(
        str(counted.compiler),
        priced.launches,
        eager.launches,
        sum(map(sum, priced.works)),
        sum(device_s),
        sum(priced.host_s),
        sum(eager.host_s),
    )


def _launch_s(gpu: AchievedGpu) -> tuple[float, float]:
    """Return the host's time of a launch of forward and of backward."""
    return (EAGER_LAUNCH_S, EAGER_LAUNCH_S) if gpu.achieved.eager else (FORWARD_LAUNCH_S, BACKWARD_LAUNCH_S)


def _as_run(
    parameters: Sequence[Parameter], frozen: Sequence[FrozenParameter], precision: str
) -> tuple[tuple[Parameter, ...], tuple[FrozenParameter, ...]]:
    """Return both as they run: of a step counted in fp32 those that `bf16` makes of them, else those that it has."""
    cast = precision == "bf16" and "bfloat16" not in _dtypes((*parameters, *frozen))
    dtypes = {"float32": "bfloat16"} if cast else {}
    return (
        tuple(replace(each, dtype=dtypes.get(each.dtype, each.dtype), device="cuda:0") for each in parameters),
        tuple(replace(each, dtype=dtypes.get(each.dtype, each.dtype), device="cuda:0") for each in frozen),
    )


def _dtypes(parameters: Sequence[Parameter]) -> tuple[str, ...]:
    return tuple(parameter.dtype for parameter in parameters)


def _workload(
    shape: ModelShape,
    gpu: AchievedGpu,
    precision: str,
    parameters: tuple[Parameter, ...],
    timeline: Timeline,
    anchors: Sequence[Anchor],
) -> Workload:
    # A published time was taken as its benchmark waits for the device; a step scaled to it has to wait there too.
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
        frozen=shape.frozen,
        activations_bytes=None if shape.activations is None else shape.activations.in_precision(precision),
        optimizer_kind=shape.optimizer_kind,
        autocast_dtype=shape.autocast_dtype if precision == "amp" else None,
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
) -> dict[str, object]:
    kinds = sorted({operator.kind for operator in (*shape.forward, *shape.backward) if operator.flops})
    shares = {kind: gpu.achieved.share(kind, precision) for kind in kinds}
    return {
        "how": "estimated: roofline of the model's operators" + (", scaled to a published step" if anchors else ""),
        "gpu": gpu.source,
        "achieved_shares": {**shares, "memory": gpu.achieved.memory_share},
        "shares_source": gpu.achieved.source,
        "scaled_to": "; ".join(anchor.source for anchor in anchors) or None,
        "scale": round(pace.scale, 4),
        **({} if (repeats := find_repeat_spread(anchors)) is None else {"repeats": repeats}),
        "sample": shape.sample,
        "host": "prior: eager mode, a fixed launch cost an operator"
        if shape.compiler is None
        else f"prior: eager mode's launch cost for each launch of {shape.compiler}",
        "flops": sum(operator.flops for operator in (*shape.forward, *shape.backward)),
        **({} if shape.counted is None else {"counted": shape.counted}),
        **({COMPILED: True} if shape.compiled else {}),
        **({LEFT_OUT: list(shape.left_out)} if shape.left_out else {}),
        **({"pace": pace.document()} if optimizer is not None or pace.host != 1 else {}),
        **({} if optimizer is None else {"optimizer": optimizer.name}),
        **({} if gpu.shipped else {"gpu_figures": gpu.figures()}),
    }
