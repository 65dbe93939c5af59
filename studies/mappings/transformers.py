"""The transformers of the published steps, as their estimates count them: parameters, gradients and operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from torch import nn
from torch.utils.checkpoint import set_checkpoint_early_stop

from ddpexec.capturing.shapes import step_shape
from ddpsim.workload import Workload
from ddpsim.workload.anchors import Anchor, RooflineFactors
from ddpsim.workload.estimate import EstimateOptions, ModelShape, estimate
from ddpsim.workload.gpu_options import gpu_with
from ddpsim.workload.gpus import AchievedGpu
from ddpsim.workload.optimizers import OPTIMIZERS
from studies.mappings.rows import Model, Row
from tests.ddpexec.capturing import gpt2_steps

_OPTIMIZER = OPTIMIZERS["adamw-fused"]
"""Of Megatron-LM, by apex, and of those beside it."""

_HALF_OF_VOLTA = ("bf16=125T",)
"""fp16 in all of a step, which estimates know as bf16: of a V100 at the peak of its data sheet for fp16."""


@cache
def gpu_of(name: str) -> AchievedGpu:
    """Return a GPU with the figures of 16 bits throughout."""
    peaks = _HALF_OF_VOLTA if name.startswith("V100") else ()
    return AchievedGpu.of(gpu_with(name, None, None, peaks, None, None)).with_fitted()


def gpt(model: Model, batch: int) -> tuple[nn.Module, Callable[[], object]]:
    """Return a step of a GPT as Megatron-LM has it: scores of attention are written, and dropped from."""
    size = gpt2_steps.Size(
        model.layers, model.width, model.heads, model.vocabulary, model.tokens, dropout=0.1, flash=False
    )
    module, step = gpt2_steps.training(size, batch, "bf16")

    def whole() -> None:
        # Megatron-LM's own checkpoint computes all of a layer again, its last sum over ranks too.
        with set_checkpoint_early_stop(False):
            step()

    return module, whole


@cache
def _shape(model: Model, batch: int) -> ModelShape:
    return step_shape(partial(gpt, model, batch), checkpointing=True).shape


@cache
def estimated(model: Model, batch: int, gpu: str, tensor: int, pace: RooflineFactors | None = None) -> Workload:
    """Return a rank's part of one micro-batch, whose layers are computed again in backward."""
    options = EstimateOptions(optimizer=_OPTIMIZER, pace=pace, tensor_parallel=tensor)
    return estimate(_shape(model, batch), gpu_of(gpu), "bf16", options)


@cache
def pace_of(row: Row, gpu: str) -> RooflineFactors:
    """Return by how much a step measured on one GPU exceeds its estimate there."""
    options = EstimateOptions(anchors=(Anchor("step", row.step_s),), optimizer=_OPTIMIZER)
    made = estimate(_shape(row.model, row.micro_batch), gpu_of(gpu), "bf16", options)
    return RooflineFactors.of(made.provenance, row.series)
