"""Activation checkpointing as a knob of an estimate: each of a model's equal layers is computed again in backward."""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from ddpsim.common.errors import InputError

_LAYERS = 2
"""From so many equal modules in a row on they are taken for the layers of a model; the longest such row is."""


def layers_of(module: nn.Module) -> nn.ModuleList | nn.Sequential | None:
    """Return the longest list of modules of one class within `module`; None where there is none of two and more."""
    found: nn.ModuleList | nn.Sequential | None = None
    for each in module.modules():
        if not isinstance(each, nn.ModuleList | nn.Sequential) or len({type(layer) for layer in each}) != 1:
            continue
        if len(each) >= max(_LAYERS, 1 + (0 if found is None else len(found))):
            found = each
    return found


def checkpoint_layers(module: nn.Module) -> nn.Module:
    """Let each layer of `module` keep its inputs alone and compute itself again in backward; returns `module`.

    Raises:
        InputError: a module without a list of equal layers.
    """
    layers = layers_of(module)
    if layers is None:
        what = f"{type(module).__name__} has no list of equal layers"
        remedy = "call torch.utils.checkpoint in the module itself; a step that does is counted as it is"
        raise InputError(what, place="--activation-checkpointing", remedy=remedy)
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    return module
