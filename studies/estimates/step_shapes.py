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
from ddpexec.capturing.models import bert, build, gpt2
from ddpexec.capturing.models.training import Batch, TrainingModel, classifier
from ddpexec.capturing.models.vision import ResNet
from ddpexec.capturing.shapes import checkpoint_layers, count_training_step, layers_of, shape_of
from ddpexec.ddp.parameters import collect
from ddpsim.bucketing import Parameter
from ddpsim.workload.estimate import ModelShape
from ddpsim.workload.operators import Operator
from studies.estimates.one_gpu_steps import Step, steps
from studies.estimates.plain_models import VITS, WRITTEN_OUT, plain
from studies.session import once_a_session

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


@dataclass(frozen=True, slots=True)
class Form:
    """What of a step decides its operators, beside the batch.

    Attributes:
        model, length, checkpointed: as `Step` has them.
        apart: whether attention is counted as the operators that it was before torch 2.0.
        autocast: whether the operators are those of autocast.
    """

    model: str
    length: int
    checkpointed: bool
    apart: bool
    autocast: bool

    @classmethod
    def of(cls, step: Step) -> Form:
        """Return that of `step`."""
        apart = not step.fused_attention and bool(step.length or step.model.startswith("vit"))
        autocast = step.precision == "amp" and not step.fused
        return cls(step.model, step.length, step.checkpointed, apart, autocast)


Sequences = tuple[tuple[Operator, ...], tuple[Operator, ...]]
"""Operators of forward and of backward, in launch order."""


@cache
def kernels(step: Step) -> Kernels:
    """Return the operators of one micro-batch of `step`, those of autocast where it was on.

    Layers are alike, so that one and two of them give all.
    """
    form = Form.of(step)
    parameters, layers = _model(form.model, form.length)
    if not layers:
        forward, backward = map(Counter, _of_batch(form, step.batch_size, 0))
        return Kernels(forward, backward, parameters)
    one, two = (_of_batch(form, step.batch_size, some) for some in (1, 2))
    forward, backward = (_times(Counter(few), Counter(more), layers) for few, more in zip(one, two, strict=True))
    return Kernels(forward, backward, parameters)


@cache
def _model(model: str, length: int) -> tuple[tuple[Parameter, ...], int]:
    """Return the parameters of a model and how many equal layers it has."""
    with torch.device("meta"):
        module = _built(model, length).module
    return tuple(collect(module).policy), len(layers_of(module) or ())


@cache
def _batches(form: Form) -> list[int]:
    """Return the two batches of the published steps of a form that are counted; others are between or beyond."""
    return sorted({step.batch_size for step in steps() if Form.of(step) == form and step.batch_size > 1})[:2]


def _of_batch(form: Form, batch: int, layers: int) -> Sequences:
    """Return the operators of a batch: counted, or from those of two others where more of the form are published."""
    known = _batches(form)
    if batch in known or batch == 1 or len(known) < 2:
        return _counted(form, batch, layers)
    low, high = (_counted(form, each, layers) for each in known)
    forward, backward = (
        tuple(_between(*pair, (batch - known[0], known[1] - known[0])) for pair in zip(*phases, strict=True))
        for phases in zip(low, high, strict=True)
    )
    return forward, backward


def _between(low: Operator, high: Operator, way: tuple[int, int]) -> Operator:
    """Return an operator whose figures lie so far on the way from one to the other: all go straight with a batch.

    Raises:
        ValueError: they are not the same operator of two batches.
    """
    if (low.kind, low.term, low.fp32, low.product is None) != (high.kind, high.term, high.fp32, high.product is None):
        raise ValueError(f"{low} and {high} are not one operator of two batches")

    done, whole = way

    def at(one: float, other: float) -> float:
        return one + (other - one) * done / whole

    product = low.product and high.product and tuple(map(round, map(at, low.product, high.product)))
    return replace(
        low,
        flops=at(low.flops, high.flops),
        traffic_bytes=at(low.traffic_bytes, high.traffic_bytes),
        product=product,  # type: ignore[arg-type]
    )


def _times(one: Counter[Operator], two: Counter[Operator], layers: int) -> Counter[Operator]:
    """Return what `layers` layers do, from what one and two of them do."""
    added = {operator: two[operator] - one[operator] for operator in {*one, *two}}
    found = {operator: one[operator] + (layers - 1) * more for operator, more in added.items()}
    return Counter({operator: count for operator, count in found.items() if count})


def shape(step: Step) -> ModelShape:
    """Return one micro-batch of `step` operator by operator, counted under autocast too where it was on."""
    return _shape(Form.of(step), step.batch_size, 0)


def _shape(form: Form, batch: int, layers: int) -> ModelShape:
    """Return a micro-batch of a form; of so many layers, all where that is 0."""

    def make() -> TrainingModel:
        made = _built(form.model, form.length)
        if form.checkpointed:
            checkpoint_layers(made.module)
        if layers:
            found = layers_of(made.module)
            assert found is not None
            del found[layers:]
        return made

    with _apart(masked=form.model.startswith("bert")) if form.apart else nullcontext():
        with torch.device("meta"):
            model = make()
        return count_training_step(model, batch, make) if form.autocast else shape_of(model, batch)


@once_a_session
def _counted(form: Form, batch: int, layers: int) -> Sequences:
    found = _shape(form, batch, layers)
    phases = found.amp if found.amp is not None else found
    forward, backward = (
        tuple(replace(operator, gradients=(), fixed_bytes=0.0, edge_bytes=0.0) for operator in phase)
        for phase in (phases.forward, phases.backward)
    )
    return forward, backward


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
