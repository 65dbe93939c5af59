"""Hooks that autograd calls when it has accumulated a gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ddpexec.parameters import ModelParameters
from ddpexec.serial import serial


def hook_gradients(model: ModelParameters, hook: Callable[[int, Tensor], None]) -> list[Any]:
    """Let `hook(index, parameter)` be called for each gradient of `model`; return the handles, by registration index.

    Gradients of several devices, each of which has a thread of autograd's, come one at a time.
    """
    called = serial(hook) if len(model.devices) > 1 else hook
    register = nn.Parameter.register_post_accumulate_grad_hook
    return [
        register(parameter, functools.partial(called, index))  # type: ignore[no-untyped-call]
        for index, parameter in enumerate(model.tensors)
    ]
