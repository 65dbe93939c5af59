"""The models that ddpexec trains, captures and estimates: plain torch, published parameter counts.

Parameters are registered in the order, and with the names and shapes, of torchvision's and Hugging Face's models, so
that a bucket plan made for one fits the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from ddpexec.models import bert, gpt2, mlp, resnet, vgg, vit
from ddpexec.models.training import Batch, TrainingModel
from ddpsim.errors import UnknownNameError

MODELS: Mapping[str, Callable[[], TrainingModel]] = MappingProxyType(
    {
        "resnet50": resnet.resnet50,
        "resnet152": resnet.resnet152,
        "resnext50_32x4d": resnet.resnext50_32x4d,
        "bert-base": bert.bert_base,
        "bert-large": bert.bert_large,
        "gpt2-small": gpt2.gpt2_small,
        "vgg16": vgg.vgg16,
        "vit-b16": vit.vit_b16,
        "mlp": mlp.mlp,
    }
)
"""Name to builder."""


def build(name: str, device: torch.device | str | None = None) -> TrainingModel:
    """Build the model called `name`, its parameters on `device` (`meta` gives shapes alone, at once).

    Raises:
        UnknownNameError: no such model; the nearest names are given.
    """
    if name not in MODELS:
        raise UnknownNameError.among("model", name, MODELS)
    with torch.device(device or "cpu"):
        return MODELS[name]()


__all__ = ["MODELS", "Batch", "TrainingModel", "build"]
