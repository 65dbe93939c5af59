"""A multilayer perceptron of ResNet-50's size: equal layers, nearly no computation a byte."""

from __future__ import annotations

from torch import nn

from ddpexec.capturing.models.training import TrainingModel, classifier

_WIDTH, _LAYERS = 2048, 6
"""Chosen by hand: 16 MiB of weights a layer, so that few layers make torch's default buckets."""


def mlp() -> TrainingModel:
    """Return six linear layers of 2048 x 2048: 25,178,112 parameters."""
    layers: list[nn.Module] = []
    for _ in range(_LAYERS):
        layers += [nn.Linear(_WIDTH, _WIDTH), nn.ReLU()]
    return classifier("mlp", nn.Sequential(*layers[:-1]), 64, (_WIDTH,), _WIDTH)
