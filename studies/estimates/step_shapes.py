"""Operators of the published steps' models: this project's own, with the head and the attention that were timed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from ddpexec.capturing import counting
from ddpexec.capturing.shapes import shape_of
from ddpexec.models import bert, build, gpt2
from ddpexec.models.resnet import ResNet
from ddpexec.models.training import Batch, TrainingModel, classifier
from ddpsim.workload.estimate import ModelShape
from ddpsim.workload.operators import Operator
from studies.estimates.one_gpu_steps import Step

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


def shape(step: Step) -> ModelShape:
    """Return the operators of one forward and backward of `step`.

    Arithmetic and traffic are a constant and a share of the batch size, so that two batches give all.
    """
    small, large = (_counted(step.model, step.length, step.fused_attention, size) for size in (2, 4))

    def at(few: Operator, many: Operator) -> Operator:
        slope = (many.flops - few.flops) / 2, (many.traffic_bytes - few.traffic_bytes) / 2
        more = step.batch_size - 2
        return replace(few, flops=few.flops + slope[0] * more, traffic_bytes=few.traffic_bytes + slope[1] * more)

    return replace(
        small,
        batch_size=step.batch_size,
        forward=tuple(map(at, small.forward, large.forward)),
        backward=tuple(map(at, small.backward, large.backward)),
    )


@cache
def _counted(model: str, length: int, fused: bool, batch_size: int) -> ModelShape:
    with torch.device("meta"):
        built = _built(model, length)
    if fused or (not length and model != "vit-b16"):
        return shape_of(built, batch_size)
    with _apart(masked=model.startswith("bert")):
        return shape_of(built, batch_size)


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
    return build(model, "meta")


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
