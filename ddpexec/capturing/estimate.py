"""The shipped workloads, estimated: which models on which GPUs, and the published times they are scaled to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ddpexec.capturing.operators import model_shape
from ddpexec.models import MODELS
from ddpsim.errors import InputError, WorkloadError
from ddpsim.prediction.carry import Carried, carried
from ddpsim.workload import Workload
from ddpsim.workload.anchors import Anchor, RooflineFactors
from ddpsim.workload.estimate import ModelShape, estimate
from ddpsim.workload.files import save_workload
from ddpsim.workload.gpus import Roofline, gpu_named
from ddpsim.workload.optimizers import Optimizer

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


def estimate_model(
    model: str,
    gpu: str | Roofline,
    precision: str,
    batch_size: int | None = None,
    anchors: Sequence[Anchor] = (),
    optimizer: Optimizer | None = None,
    pace: RooflineFactors | None = None,
) -> Workload:
    """Return the estimate of the shipped model `model` on `gpu`.

    It is scaled to `anchors`, or takes the `pace` of another estimate; without either, and without an optimizer, it is
    scaled to a published step where there is one.

    Raises:
        UnknownNameError: no such model or GPU.
        WorkloadError: the GPU lacks the precision, or cannot reach an anchor.
    """
    found, shape = gpu_named(gpu).fitted() if isinstance(gpu, str) else gpu, model_shape(model, batch_size)
    if not anchors and optimizer is None and pace is None:
        return _estimate(shape, found, precision)
    return estimate(shape, found, precision, anchors, optimizer, pace)


def carry_model(source: Workload, gpu: Roofline, model: str | None = None, precision: str | None = None) -> Carried:
    """Return the recorded `source` as `gpu` would run it, by the operators of its model where that is shipped.

    Args:
        source: a capture.
        gpu: that one lacks.
        model: whose operators they are; None is the one that the capture is named after.
        precision: of the computation; None is the capture's.

    Raises:
        UnknownNameError: no such model.
        WorkloadError: a model with other parameters, or as `carried`.
    """
    name = model or source.name.partition("@")[0]
    try:
        shape = model_shape(name, source.batch_size)
    except InputError:
        if model is not None:
            raise
        return carried(source, gpu, None, precision)
    if [p.shape for p in shape.parameters] != [p.shape for p in source.parameters]:
        if model is None:
            return carried(source, gpu, None, precision)
        what = f"its parameters are not those of {model}"
        raise WorkloadError(what, place=source.name, remedy="leave --model out, or name the model that was captured")
    return carried(source, gpu, shape, precision)


def write_shipped(folder: Path) -> Iterator[Path]:
    """Write every shipped workload into `folder`; yields each file as it is written. The same bytes each time."""
    for model in MODELS:
        shape = model_shape(model)
        for number, (gpu, precision) in enumerate(SHIPPED):
            workload = _estimate(shape, gpu_named(gpu), precision)
            copies = [workload] if number else [replace(workload, name=model), workload]
            for copy in copies:
                path = folder / f"{copy.name}.json.gz"
                save_workload(copy, path)
                yield path


def _estimate(shape: ModelShape, gpu: Roofline, precision: str) -> Workload:
    published = ANCHORS.get((shape.name, gpu.name, precision, shape.batch_size)) if gpu.shipped else None
    return estimate(shape, gpu, precision, published)
