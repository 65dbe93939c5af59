"""Operators of the published steps' models: this project's own, with the head and the attention that were timed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from ddpexec.capturing import counting
from ddpexec.capturing.checkpointing import checkpoint_layers, layers_of
from ddpexec.capturing.shapes import training_shape
from ddpexec.ddp.parameters import collect
from ddpexec.models import bert, build, gpt2
from ddpexec.models.resnet import ResNet
from ddpexec.models.training import Batch, TrainingModel, classifier
from ddpsim.bucketing import Parameter
from ddpsim.workload.estimate import ModelShape
from ddpsim.workload.operators import Operator
from studies.estimates.one_gpu_steps import Step
from studies.estimates.plain_models import VITS, WRITTEN_OUT, plain

_VOCABULARY = 30522
_BERT = {"bert-base": (768, 12, 12), "bert-large": (1024, 16, 24)}
_RESNETS = {"resnet101": (1, 64), "resnext101_32x4d": (32, 4)}


class QuestionAnswering(nn.Module):
    """BERT with two outputs a token, for the begin and the end of an answer."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embeddings = bert.Embeddings(width)
        self.layers = nn.ModuleList(bert.BertLayer(width, heads) for _ in range(layers))
        self.outputs = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, sequence, 2)."""
        x = self.embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.outputs(x)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operators of one forward and backward, equal ones together.

    Attributes:
        forward, backward: with how often each occurs.
        parameters: of the model.
    """

    forward: Counter[Operator]
    backward: Counter[Operator]
    parameters: tuple[Parameter, ...]


@cache
def kernels(step: Step) -> Kernels:
    """Return the operators of one micro-batch of `step`, those of autocast where it was on.

    Layers are alike, so that one and two of them give all.
    """
    with torch.device("meta"):
        built = _built(step.model, step.length)
    layers = len(layers_of(built.module) or ())
    if not layers:
        return _counted(step, 0)
    one, two = _counted(step, 1), _counted(step, 2)
    forward, backward = (_times(getattr(one, phase), getattr(two, phase), layers) for phase in ("forward", "backward"))
    return Kernels(forward, backward, tuple(collect(built.module).policy))


def _times(one: Counter[Operator], two: Counter[Operator], layers: int) -> Counter[Operator]:
    """Return what `layers` layers do, from what one and two of them do."""
    added = {operator: two[operator] - one[operator] for operator in {*one, *two}}
    found = {operator: one[operator] + (layers - 1) * more for operator, more in added.items()}
    return Counter({operator: count for operator, count in found.items() if count})


def shape(step: Step, layers: int = 0) -> ModelShape:
    """Return one micro-batch of `step` operator by operator, counted under autocast too where it was on.

    Args:
        layers: to keep; 0 keeps all.
    """

    def make() -> TrainingModel:
        made = _built(step.model, step.length)
        if step.checkpointed:
            checkpoint_layers(made.module)
        if layers:
            del layers_of(made.module)[layers:]  # type: ignore[index]
        return made

    apart = not step.fused_attention and bool(step.length or step.model.startswith("vit"))
    with _apart(masked=step.model.startswith("bert")) if apart else nullcontext():
        with torch.device("meta"):
            model = make()
        return training_shape(model, step.batch_size, make if step.precision == "amp" and not step.fused else None)


def _counted(step: Step, layers: int) -> Kernels:
    found = shape(step, layers)
    phases = found.amp if found.amp is not None else found
    forward, backward = (
        Counter(replace(operator, gradients=(), fixed_bytes=0.0, edge_bytes=0.0) for operator in phase)
        for phase in (phases.forward, phases.backward)
    )
    return Kernels(forward, backward, found.parameters)


def _built(model: str, length: int) -> TrainingModel:
    if model in _RESNETS:
        return classifier(model, ResNet((3, 4, 23, 3), *_RESNETS[model]), 32, (3, 224, 224), 1000)
    if model.endswith("-qa"):
        return _question_answering(model, length)
    if model == "gpt2-small":
        built = gpt2.gpt2_small(length)
        for module in built.module.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return built
    return plain(model, length) if model in (*WRITTEN_OUT, *VITS) else build(model, torch.get_default_device().type)


def _question_answering(name: str, length: int) -> TrainingModel:
    module = QuestionAnswering(*_BERT[name.removesuffix("-qa")])

    def make_batch(size: int, device: torch.device, generator: torch.Generator | None) -> Batch:
        tokens = torch.randint(_VOCABULARY, (size, length), device=device)
        return Batch((tokens,), (torch.randint(length, (size, 2), device=device),))

    def loss(output: Any, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(output, batch.targets[0])

    return TrainingModel(name, module, 8, f"sequence of {length} tokens", make_batch, loss)


@contextmanager
def _apart(*, masked: bool) -> Iterator[None]:
    """Take attention apart into the operators that it was before torch 2.0."""

    def attention(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False) -> Tensor:
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        if is_causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device), 0.0)
        if masked:
            scores = scores + torch.zeros(len(scores), 1, 1, scores.shape[-1], device=scores.device)
        return nn.functional.dropout(scores.softmax(-1), dropout_p) @ value

    with (
        mock.patch.object(nn.functional, "scaled_dot_product_attention", attention),
        mock.patch.object(counting, "FusedAttention", return_value=nullcontext()),
    ):
        yield
