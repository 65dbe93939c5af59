"""The optimizer's step of an estimated workload: another than it was estimated with, and what clipping is of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ddpsim.errors import InputError
from ddpsim.workload.gpus import AchievedGpu, gpu_of
from ddpsim.workload.optimizers import Optimizer, optimizer_named, optimizer_of_kind
from ddpsim.workload.profile import Phase, Workload


def with_optimizer(workload: Workload, name: str | None, *, clipping: bool) -> Workload:
    """Return an estimated workload with the optimizer called `name`, after gradient clipping where that is asked for.

    Forward and backward stay as they were estimated, those of a step that was scaled to a measured one too.

    Args:
        name: None is the workload's own.
        clipping: whether gradients are clipped before the step.

    Raises:
        UnknownNameError: no such optimizer.
        InputError: a workload that was recorded, with its optimizer, or whose own optimizer or GPU is not known.
    """
    if name is None and not clipping:
        return workload
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
    return _updated(workload, wanted, _gpu(workload, place))


def clipping_share(workload: Workload) -> float | None:
    """Return the share of the optimizer's device time that clipping gradients is; None where it is not known.

    A workload is asked that was estimated with its optimizer named; others clip nothing that is known of.
    """
    clipped = optimizer_of_kind(workload.optimizer_kind)
    if clipped is None or not workload.estimated or (gpu := gpu_of(workload.gpu, workload.provenance)) is None:
        return None
    if not clipped.clips:
        return 0.0
    plain = optimizer_named(clipped.kind.removesuffix("+clip"))
    return 1 - _device_s(workload, plain, gpu.fitted()) / _device_s(workload, clipped, gpu.fitted())


def _updated(workload: Workload, optimizer: Optimizer, gpu: AchievedGpu) -> Workload:
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
    return gpu.fitted()
