"""The models that ddpexec trains, captures and estimates: plain torch, published parameter counts.

Parameters are registered in the order, and with the names and shapes, of torchvision's and Hugging Face's models, so
that a bucket plan made for one fits the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch

from ddpexec.capturing.models import bert, gpt2, vision
from ddpexec.capturing.models.training import Batch, TrainingModel, flush_denormals
from ddpsim.common.errors import InputError, UnknownNameError

MODELS: Mapping[str, Callable[..., TrainingModel]] = MappingProxyType(
    {
        "resnet50": vision.resnet50,
        "resnet152": vision.resnet152,
        "resnext50_32x4d": vision.resnext50_32x4d,
        "bert-base": bert.bert_base,
        "bert-large": bert.bert_large,
        "gpt2-small": gpt2.gpt2_small,
        "gpt2-mini": gpt2.gpt2_mini,
        "vgg16": vision.vgg16,
        "vit-b16": vision.vit_b16,
        "mlp": vision.mlp,
    }
)
"""Name to builder."""

ESTIMATED = tuple(name for name in MODELS if name != "gpt2-mini")
"""Models whose steps on GPUs are shipped; the other is for runs on two cores of a laptop."""

LONGEST: Mapping[str, int] = MappingProxyType(
    {"bert-base": bert.POSITIONS, "bert-large": bert.POSITIONS, "gpt2-small": gpt2.POSITIONS}
)
"""Models of token sequences, and how long one may be. `NAME-sN` has sequences of N tokens instead of its own number."""


def builder(name: str, *, place: str | None = None) -> Callable[[], TrainingModel]:
    """Return what builds the model called `name`: one of `MODELS`, or `NAME-sN` for sequences of N tokens.

    Raises:
        UnknownNameError: no such model; the nearest names are given.
        InputError: a length on a model without sequences, or one that it cannot have.
    """
    if name in MODELS:
        return MODELS[name]
    shorter = re.fullmatch(r"(.+)-s([0-9]{1,18})", name)
    if shorter is None or shorter[1] not in MODELS:
        raise UnknownNameError.among("model", name, MODELS, place=place)
    kind, length = shorter[1], int(shorter[2])
    if kind not in LONGEST:
        raise InputError(f"{kind} has no sequences, but {name!r} gives a length", place=place, remedy=f"write {kind}")
    if not 1 <= length <= LONGEST[kind]:
        remedy = f"give 1 to {LONGEST[kind]} tokens"
        raise InputError(f"{name!r} has sequences of {length} tokens", place=place, remedy=remedy)
    return partial(MODELS[kind], length)


def build(name: str, device: torch.device | str | None = None) -> TrainingModel:
    """Build the model called `name`, its parameters on `device` (`meta` gives shapes alone, at once).

    Raises:
        InputError: as `builder`.
    """
    make = builder(name)
    with torch.device(device or "cpu"):
        return make()


__all__ = ["ESTIMATED", "LONGEST", "MODELS", "Batch", "TrainingModel", "build", "builder", "flush_denormals"]
