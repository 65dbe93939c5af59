"""A workload carried from the GPU it was recorded on to another, by what the roofline says of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddpsim.common.errors import WorkloadError
from ddpsim.workload import Phase, Workload
from ddpsim.workload.estimate import ModelShape, convert_to_run, estimate
from ddpsim.workload.gpus import AchievedGpu, check_peak, gpu_of
from ddpsim.workload.iteration_profile import paces
from ddpsim.workload.replayed import was_compiled
from ddpsim.workload.roofline import roofline_s
from ddpsim.workload.times import Seconds

_REMEDY = "give --model, or --step package.module:function, whose operators can be counted"


@dataclass(frozen=True, slots=True)
class ConvertedWorkload:
    """A workload that was carried from one GPU to another, and how.

    Attributes:
        workload: on the other GPU.
        notes: what had to be assumed, for people.
    """

    workload: Workload
    notes: tuple[str, ...] = ()


def carry_workload(
    source: Workload, target: AchievedGpu, shape: ModelShape | None = None, precision: str | None = None
) -> ConvertedWorkload:
    """Return `source` as `target` would run it, with the same batch.

    Args:
        source: a capture.
        target: a GPU that one lacks.
        shape: the operators of the captured step; None where they are not known.
        precision: None is the capture's, which a GPU's keeps.

    With the model's operators each gradient's work is scaled by what the roofline says of the operators before it on
    both GPUs. Without them a step is taken to be bound by arithmetic in its `arithmetic_share`, or where that is not
    known half by arithmetic and half by memory. The host's times stay as they were recorded. A CPU's times say nothing
    of a GPU: of such a workload only the operators are carried, which is an estimate.

    Raises:
        WorkloadError: operators are needed and `shape` is None, the GPU it is from has no figures, or the target lacks
            the precision.
    """
    if source.one_clock:
        if shape is None:
            what = f"recorded on {source.device}, whose times say nothing of a GPU; the file has no operators"
            raise WorkloadError(what, place=source.name, remedy=_REMEDY)
        shape = replace(shape, compiled=was_compiled(source), autocast_dtype=source.autocast_dtype)
        estimated = estimate(shape, target, precision or source.precision)
        notes = [f"{source.name} was recorded on {source.device}: its operators are estimated on {target.name}"]
        if was_compiled(source) and shape.compiler is None:
            remedy = "estimate the compiled step itself for what fusing saves: `python -m ddpexec estimate --step ...`"
            notes.append(f"{source.name} was compiled by torch.compile, and is priced operator by operator; {remedy}")
        return ConvertedWorkload(
            replace(estimated, provenance={**estimated.provenance, "carried_from": source.name}), tuple(notes)
        )
    if precision not in (None, source.precision):
        what, remedy = f"recorded in {source.precision}, not {precision}", "leave --precision out, or use --model alone"
        raise WorkloadError(what, place=source.name, remedy=remedy)
    known = gpu_of(source.device, source.provenance)
    if known is None:
        remedy = "capture on a GPU that `--gpu` knows, or estimate the step: `python -m ddpexec estimate --model ...`"
        raise WorkloadError(f"{source.device} has no figures to carry from", place=source.name, remedy=remedy)
    for gpu in (known, target):
        remedy = f"use a workload in {', '.join(target.peak_flops)}"
        check_peak(gpu, source.precision, source.autocast_dtype, source.name, remedy)
    here = known.with_fitted()
    factors, how, assumed = (
        _scale_by_operators(source, here, target, shape) if shape else _scale_by_share(source, here, target)
    )
    workload = retimed(source, factors)
    return ConvertedWorkload(
        replace(
            workload,
            name=f"{source.name.partition('@')[0]}@{target.name.lower()}-{source.precision}-b{source.batch_size}",
            device=target.name,
            estimated=True,
            provenance=_provenance(source, target, factors, how),
        ),
        assumed,
    )


def _scale_by_operators(
    source: Workload, here: AchievedGpu, there: AchievedGpu, shape: ModelShape
) -> tuple[Factors, str, tuple[str, ...]]:
    shape = convert_to_run(shape, here, source.precision)
    (forward, backward), (forward_there, backward_there) = (
        roofline_s((shape.forward, shape.backward), gpu, source.precision) for gpu in (here, there)
    )
    # A gradient's work is that of the operators since the gradient before it, so that each segment of backward has a
    # factor of its own: early layers may be bound by memory where late ones are bound by arithmetic.
    gradients = np.full(len(source.parameters), sum(backward_there) / sum(backward))
    first = 0
    for number, operator in enumerate(shape.backward):
        if operator.gradients:
            segment = slice(first, number + 1)
            gradients[list(operator.gradients)] = sum(backward_there[segment]) / sum(backward[segment])
            first = number + 1
    tail = sum(backward_there) / sum(backward)
    factors = Factors(sum(forward_there) / sum(forward), gradients, tail, here.achieved_Bps / there.achieved_Bps)
    return factors, "operator by operator, between gradients", ()


def _scale_by_share(source: Workload, here: AchievedGpu, there: AchievedGpu) -> tuple[Factors, str, tuple[str, ...]]:
    arithmetic = here.achieved_flops("gemm", source.precision) / there.achieved_flops("gemm", source.precision)
    memory = here.achieved_Bps / there.achieved_Bps
    share, notes = source.arithmetic_share, tuple[str, ...]()
    if share == 1.0:
        share = 0.5
        notes = (
            f"which part of {source.name} arithmetic bounds is not known: half is assumed; its times go by "
            f"{arithmetic:.3g} where arithmetic bounds them and by {memory:.3g} where memory does",
        )
    factor = share * arithmetic + (1 - share) * memory
    gradients = np.full(len(source.parameters), factor)
    return Factors(factor, gradients, factor, memory), f"{share:.3g} by arithmetic, the rest by memory", notes


def _provenance(source: Workload, target: AchievedGpu, factors: Factors, how: str) -> Mapping[str, object]:
    used: Sequence[float] = [factors.forward, float(np.median(factors.gradients)), factors.optimizer]
    return {
        "how": f"carried from {source.device}: {how}",
        "carried_from": source.name,
        "factors": {name: round(f, 4) for name, f in zip(("forward", "gradients", "optimizer"), used, strict=True)},
        "gpu": target.source,
        "shares_source": target.achieved.source,
        "host": f"as recorded beside the {source.device}",
        "recorded": dict(source.provenance),
        **({} if target.shipped else {"gpu_figures": target.figures()}),
    }


@dataclass(frozen=True, slots=True)
class Factors:
    """These are factors on the device's work.

    Attributes:
        forward, tail, optimizer: on that of forward, of backward after its last gradient, and of the optimizer.
        gradients: on what completes each gradient, by registration index.
    """

    forward: float
    gradients: Seconds
    tail: float
    optimizer: float


def retimed(workload: Workload, factors: Factors) -> Workload:
    """Return `workload` with its device's work scaled; the host's stays.

    A recorded completion is the later of two things: the device has done the work since the last completion, or the
    host has launched it. Scaled is the work alone; the launch, a hook and the lag behind it, stays. So a faster device
    makes a host-bound step no shorter.
    """
    use, ready, backward = workload.forward_use_s, workload.gradient_ready_s.copy(), np.empty(workload.iterations)
    for iteration, pace in enumerate(paces(workload)):
        hooks, complete = workload.gradient_hook_s[iteration], 0.0
        order = list(pace.order)
        work = pace.work * factors.gradients[order]
        for place, index in enumerate(order):
            # The two clocks start apart, so that a completion may stand before its hook: it did then too.
            launched = min(hooks[index] + pace.lag[place], workload.gradient_ready_s[iteration, index])
            complete = max(complete + work[place], launched)
            ready[iteration, index] = complete
        backward[iteration] = work.sum() + pace.tail_work * factors.tail
    return replace(
        workload,
        forward=Phase(workload.forward.host_s, workload.forward.device_s * factors.forward),
        backward=Phase(workload.backward.host_s, backward),
        optimizer=Phase(workload.optimizer.host_s, workload.optimizer.device_s * factors.optimizer),
        gradient_ready_s=ready,
        forward_use_s=use and use.scale_device(factors.forward),
        devices=tuple(replace(part, device_s=part.device_s * factors.forward) for part in workload.devices),
    )
