"""Estimated workloads: of the shipped models, with the published times they are scaled to, and of one's own step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.capturing.models import ESTIMATED
from ddpexec.capturing.own_step import Factory
from ddpexec.capturing.shapes import Note, OwnShape, model_shape, module_shape, step_shape
from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.prediction.carry import ConvertedWorkload, carry_workload
from ddpsim.workload import Workload
from ddpsim.workload.anchors import Anchor
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.files import save_workload
from ddpsim.workload.gpus import AchievedGpu, gpu_named
from ddpsim.workload.optimizers import optimizer_of_kind

SHIPPED = (
    ("V100", "fp32"), ("A100", "tf32"), ("A100", "amp"), ("H100", "amp"), ("H100", "bf16"), ("B200", "amp"),
    ("B200", "bf16"), ("GP100", "fp32"), ("GTX1080Ti", "fp32"),
)  # fmt: skip
"""GPU and precision of the shipped workloads; the first is the one a bare name means."""

_TABLE = "pytorch/pytorch benchmarks/distributed/ddp/README.md, no ddp, V100, {rate} examples/s at batch size 32"
_WAITS = ("after_optimizer",)

ANCHORS: Mapping[tuple[str, str, str, int], Anchor] = MappingProxyType(
    {
        ("resnet50", "V100", "fp32", 32): Anchor("step", 32 / 329, _WAITS, _TABLE.format(rate=329)),
        ("resnext50_32x4d", "V100", "fp32", 32): Anchor("step", 32 / 220, _WAITS, _TABLE.format(rate=220)),
        ("resnet152", "GP100", "fp32", 32): Anchor(
            "backward",
            0.25,
            (),
            "Li et al., PyTorch Distributed, VLDB 2020: about 250 ms backward on a Quadro GP100, batch size not given",
        ),
    }
)
"""Published one-GPU times by model, GPU, precision and batch size."""

NOTHING_KNOWN = EstimateOptions()
"""Of a step beside its operators."""


def estimate_model(
    model: str,
    gpu: str | AchievedGpu,
    precision: str,
    batch_size: int | None = None,
    options: EstimateOptions = NOTHING_KNOWN,
    *,
    checkpointing: bool = False,
) -> Workload:
    """Return the estimate of the shipped model `model` on `gpu`.

    Its layers are computed again in backward where `checkpointing`. It is scaled to the anchors of `options`, or takes
    their pace; without either, and without an optimizer, it is scaled to a published step where there is one.

    Raises:
        UnknownNameError: no such model or GPU.
        WorkloadError: the GPU lacks the precision, or cannot reach an anchor.
    """
    achieved, shape = _find_gpu(gpu), model_shape(model, batch_size, checkpointing=checkpointing)
    if replace(options, accumulate=1) == NOTHING_KNOWN and not checkpointing:
        return _estimate(shape, achieved, precision)
    return estimate(shape, achieved, precision, options)


def carry_model(
    source: Workload, gpu: AchievedGpu, model: str | None = None, precision: str | None = None
) -> ConvertedWorkload:
    """Return the recorded `source` as `gpu` would run it, by the operators of its model where that is shipped.

    Args:
        source: a capture.
        gpu: that one lacks.
        model: whose operators they are; None is the one that the capture is named after.
        precision: of the computation; None is the capture's.

    Raises:
        UnknownNameError: no such model.
        WorkloadError: a model with other parameters, or as `carry_workload`.
    """
    name = model or source.name.partition("@")[0]
    try:
        shape = model_shape(name, source.batch_size)
    except InputError:
        if model is not None:
            raise
        return carry_workload(source, gpu, None, precision)
    if [p.shape for p in shape.parameters] != [p.shape for p in source.parameters]:
        if model is None:
            return carry_workload(source, gpu, None, precision)
        what = f"its parameters are not those of {model}"
        raise WorkloadError(what, place=source.name, remedy="leave --model out, or name the model that was captured")
    return carry_workload(source, gpu, shape, precision)


def estimate_step(
    step: str | Factory,
    gpu: str | AchievedGpu,
    precision: str | None = None,
    *,
    batch_size: int | None = None,
    options: EstimateOptions = NOTHING_KNOWN,
    checkpointing: bool = False,
    note: Note = lambda message: None,
) -> Workload:
    """Return the estimate of a user's own training step on `gpu`; see `ddpexec.capturing.shapes.step_shape`.

    Args:
        step: `package.module:function`, as `capture_step` takes it, or the function itself.
        gpu: what it is to run on, or its name.
        precision: by default the step's own, which it must be unless that is fp32.
        options, checkpointing: as `estimate_model` takes them; an optimizer is in place of the one that the step uses.
        batch_size, note: as `step_shape` takes them.

    Raises:
        InputError: the step cannot be counted, or computes in another precision.
        WorkloadError: the GPU lacks the precision; a step without exactly one forward and one backward.
    """
    counted = step_shape(
        step, batch_size=batch_size, autocast=precision == "amp", checkpointing=checkpointing, note=note
    )
    return _estimate_own(counted, _find_gpu(gpu), precision, options)


def estimate_module(
    module: nn.Module,
    batch: object,
    gpu: str | AchievedGpu,
    precision: str | None = None,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    name: str | None = None,
    batch_size: int | None = None,
    options: EstimateOptions = NOTHING_KNOWN,
    note: Note = lambda message: None,
) -> Workload:
    """Return the estimate of a training step of `module` on `batch`; see `ddpexec.capturing.shapes.module_shape`.

    Raises:
        InputError: the step cannot be counted, or computes in another precision.
        WorkloadError: the GPU lacks the precision; no gradient came to any parameter.
    """
    shape = module_shape(module, batch, loss=loss, optimizer=optimizer, name=name, batch_size=batch_size, note=note)
    return _estimate_own(shape, _find_gpu(gpu), precision, options)


def write_shipped(folder: Path) -> Iterator[Path]:
    """Write every shipped workload into `folder`; yields each file as it is written. The same bytes each time."""
    for model in ESTIMATED:
        shape = model_shape(model)
        for number, (gpu, precision) in enumerate(SHIPPED):
            workload = _estimate(shape, gpu_named(gpu), precision)
            bare = replace(workload, name=model)  # one file a model has its operators: they are the same in all
            copies = [replace(workload, operators=None), *([] if number else [bare])]
            for copy in copies:
                path = folder / f"{copy.name}.json.gz"
                save_workload(copy, path)
                yield path


def _estimate_own(counted: OwnShape, gpu: AchievedGpu, precision: str | None, options: EstimateOptions) -> Workload:
    if precision is not None and counted.precision not in ("fp32", precision):
        what = f"the step computes in {counted.precision}, not in {precision}"
        raise InputError(what, place="--precision", remedy="leave it out, or let the step compute in fp32")
    seen = options.optimizer or optimizer_of_kind(counted.shape.optimizer_kind)
    return estimate(counted.shape, gpu, precision or counted.precision, replace(options, optimizer=seen))


def _find_gpu(gpu: str | AchievedGpu) -> AchievedGpu:
    return gpu_named(gpu).with_fitted() if isinstance(gpu, str) else gpu


def _estimate(shape: ModelShape, gpu: AchievedGpu, precision: str) -> Workload:
    published = ANCHORS.get((shape.name, gpu.name, precision, shape.batch_size)) if gpu.shipped else None
    return estimate(shape, gpu, precision, EstimateOptions(anchors=() if published is None else (published,)))
