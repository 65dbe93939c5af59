"""A workload as a job replays it where that is not as it was recorded.

With another optimizer or with clipping (`with_optimizer`); on one clock, as timed layers replay it, at which gradients
arrive whatever the host does meanwhile (`single_clock`); with iterations that differ, as no roofline tells them to
(`jittered`); and, of a step that torch.compile compiled in one graph, with gradients one by one (`spread_out`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.workload.gpus import AchievedGpu, gpu_of
from ddpsim.workload.optimizers import Optimizer, optimizer_named, optimizer_of_kind
from ddpsim.workload.profile import Phase, Workload
from ddpsim.workload.times import Seconds

COMPILED = "compiled"
"""Key of a workload's provenance: whether torch.compile compiled the step."""


def was_compiled(workload: Workload) -> bool:
    """Return whether torch.compile compiled the step of `workload`."""
    return workload.provenance.get(COMPILED) is True


def spread_out(workload: Workload) -> Workload:
    """Return a step that was recorded in one graph with the gradients that smaller graphs would give.

    Their times are assumed: in reverse order of registration, each after the share of backward that its bytes are of
    all. An estimate, which counts operators one by one, stays as it is, and so does an eager step.
    """
    if workload.estimated or not was_compiled(workload):
        return workload
    known = ~np.isnan(workload.gradient_ready_s)
    sizes = np.where(known, [float(parameter.size_bytes) for parameter in workload.parameters], 0.0)
    behind = np.cumsum(sizes[:, ::-1], axis=1)[:, ::-1]
    share = np.where(known, behind / behind[:, :1], np.nan)
    hook_s, ready_s = (
        share * np.nanmax(times, axis=1, keepdims=True)
        for times in (workload.gradient_hook_s, workload.gradient_ready_s)
    )
    return replace(workload, gradient_hook_s=hook_s, gradient_ready_s=ready_s)


ITERATIONS = 64
"""That are made; chosen by hand: the last of them is 2.4 standard deviations slow, and a file stays small."""
SOURCE = (
    "given; GPUs of one model differ by 8 % in the mean and 22 % at most on five clusters (Sinha et al., "
    "'Not All GPUs Are Created Equal', SC 2022, arXiv 2208.11035)"
)


def quantiles(count: int) -> list[float]:
    """Return so many normal quantiles, ascending, each in the middle of a share of 1 / `count`."""
    return [NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)]


def jitter_of(workload: Workload) -> float:
    """Return the standard deviation of what the iterations of `workload` are `quantiles` of; 0 of recorded ones."""
    jitter = workload.provenance.get("jitter")
    std = jitter.get("std") if isinstance(jitter, Mapping) else None
    return float(std) if isinstance(std, int | float) and math.isfinite(std) and workload.iterations > 1 else 0.0


def add_jitter(workload: Workload, jitter: float, seed: int = 0) -> Workload:
    """Return `workload` with iterations whose device times are its own times lognormal factors of median 1.

    The factors are the distribution's quantiles in an order that is drawn, so that no file lacks its tail. The host
    launches kernels at its own pace, which jitter of a device leaves alone; on one clock all times vary. Ranks of a
    prediction draw among the iterations, and the simulation adds what so few of them lack of the tail (`jitter_of`).

    Args:
        workload: of one iteration, as estimates are.
        jitter: standard deviation of the factors' logarithm.
        seed: of the draw; the same one gives the same workload.

    Raises:
        WorkloadError: a workload that has iterations of its own.
    """
    if jitter == 0:
        return workload
    if workload.iterations > 1:
        what = f"has {workload.iterations} iterations of its own, which differ already"
        raise WorkloadError(what, place="jitter", remedy="leave it out, or give it to predict")
    factors = np.exp(jitter * np.random.default_rng(seed).permutation(quantiles(ITERATIONS)))
    host = factors if workload.one_clock else np.ones(ITERATIONS)

    def phase(given: Phase) -> Phase:
        return Phase(host * given.host_s, factors * given.device_s)

    def rows(given: Seconds, by: Seconds) -> Seconds:
        return np.asarray(by[:, None] * given, dtype=np.float64)

    hooks = rows(workload.gradient_hook_s, host)
    return replace(
        workload,
        forward=phase(workload.forward),
        backward=phase(workload.backward),
        optimizer=phase(workload.optimizer),
        gradient_hook_s=hooks,
        gradient_ready_s=np.maximum(rows(workload.gradient_ready_s, factors), hooks),
        provenance={**workload.provenance, "jitter": {"std": jitter, "seed": seed, "source": SOURCE}},
    )


TICK_S = 1e-9
"""Between gradients that are complete at one time, so that the order of their hooks is not lost."""


def single_clock(workload: Workload, scale_compute: float = 1.0) -> Workload:
    """Return `workload` with host and device as one clock, all times multiplied by `scale_compute`.

    Each phase takes the longer of its host and device times; a gradient is there when the device has made it, never
    before one whose hook fired earlier. The result is marked as `timed`.
    """
    ready = _sort_by_hook(workload) * scale_compute
    use = workload.forward_use_s
    last = np.nanmax(np.where(np.isnan(ready), 0.0, ready), axis=1)
    return replace(
        workload,
        timed=True,
        forward=_merge_phase(workload.forward, scale_compute),
        backward=_merge_phase(workload.backward, scale_compute, last),
        optimizer=_merge_phase(workload.optimizer, scale_compute),
        gradient_hook_s=ready,
        gradient_ready_s=ready,
        forward_use_s=use and use.merge_clocks().scale(scale_compute, scale_compute),
    )


def _merge_phase(phase: Phase, scale: float, at_least: Seconds | float = 0.0) -> Phase:
    seconds = np.maximum(np.maximum(phase.host_s, phase.device_s) * scale, at_least)
    return Phase(seconds, seconds)


def _sort_by_hook(workload: Workload) -> Seconds:
    ready = workload.gradient_ready_s.copy()
    for iteration in range(workload.iterations):
        order = [i for i in workload.arrival_order(iteration) if not np.isnan(ready[iteration, i])]
        ticks = TICK_S * np.arange(len(order))  # gradients of one kernel are complete together, but hook in turn
        ready[iteration, order] = np.maximum.accumulate(ready[iteration, order]) + ticks
    return ready


def with_optimizer(workload: Workload, name: str | None, *, clipping: bool) -> Workload:
    """Return an estimated workload with the optimizer called `name`, after gradient clipping where that is asked for.

    Forward and backward stay as they were estimated, those of a step that was scaled to a measured one too.

    Args:
        name: None is the workload's own, where gradients are clipped.
        clipping: whether gradients are clipped before the step.

    Raises:
        UnknownNameError: no such optimizer.
        InputError: a workload that was recorded, with its optimizer, or whose own optimizer or GPU is not known.
    """
    place = "clip_gradients" if name is None else "optimizer"
    if not workload.estimated:
        remedy = "leave it out, or capture the step with the optimizer it is to have"
        raise InputError(f"{workload.name} was recorded, its optimizer with it", place=place, remedy=remedy)
    chosen = optimizer_of_kind(workload.optimizer_kind) if name is None else optimizer_named(name)
    if chosen is None:
        remedy = "add e.g. `optimizer=adamw-fused`"
        raise InputError(f"the optimizer of {workload.name} is not known", place=place, remedy=remedy)
    wanted = chosen.with_clipping() if clipping else chosen
    if workload.provenance.get("optimizer") == wanted.name:
        return workload
    return _replace_optimizer(workload, wanted, _gpu(workload, place))


def clipping_share(workload: Workload) -> float | None:
    """Return the share of the optimizer's device time that clipping gradients is; None where it is not known.

    It is known of a workload that was estimated with its optimizer named.
    """
    clipped = optimizer_of_kind(workload.optimizer_kind)
    if clipped is None or not workload.estimated or (gpu := gpu_of(workload.gpu, workload.provenance)) is None:
        return None
    if not clipped.clips:
        return 0.0
    plain = optimizer_named(clipped.kind.removesuffix("+clip"))
    return 1 - _device_s(workload, plain, gpu.with_fitted()) / _device_s(workload, clipped, gpu.with_fitted())


def _replace_optimizer(workload: Workload, optimizer: Optimizer, gpu: AchievedGpu) -> Workload:
    pace = workload.provenance.get("pace")
    host = float(pace["host"]) if isinstance(pace, Mapping) else 1.0
    one = np.ones(workload.iterations)
    host_s = host * optimizer.host_s(len(workload.parameters))
    return replace(
        workload,
        optimizer=Phase(host_s * one, _device_s(workload, optimizer, gpu) * one),
        optimizer_kind=optimizer.kind,
        provenance={**workload.provenance, "optimizer": optimizer.name},
    )


def _device_s(workload: Workload, optimizer: Optimizer, gpu: AchievedGpu) -> float:
    return sum(optimizer.works_s(workload.parameters, gpu.achieved_Bps, gpu.achieved.kernel_s))


def _gpu(workload: Workload, place: str) -> AchievedGpu:
    gpu = gpu_of(workload.gpu, workload.provenance)
    if gpu is None:
        what = f"the memory bandwidth of {workload.device}, which an optimizer's time goes by, is not known"
        raise InputError(what, place=place, remedy="estimate the step for a GPU of the table, or describe it")
    return gpu.with_fitted()
