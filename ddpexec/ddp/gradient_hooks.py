"""Hooks that autograd calls when it has accumulated a gradient."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ddpexec.ddp.parameters import ModelParameters

GradientHook = Callable[[Tensor], Any]


class GradientHooks(dict[int, GradientHook]):
    """What a parameter has called when it has its gradient: the reducer's hook last, whenever others are registered.

    So does torch's reducer, whose hook is one of autograd's node: in Python such a hook costs more a gradient. The
    order is that of the dictionary, which is looked after when a hook is registered.
    """

    last: int = -1

    def add_last(self, hook: GradientHook) -> RemovableHandle:
        """Register `hook` and let it be the last from now on."""
        handle = RemovableHandle(self)
        self.last = handle.id
        self[handle.id] = hook
        return handle

    def __setitem__(self, number: int, hook: GradientHook) -> None:
        """Register `hook`, before the last."""
        super().__setitem__(number, hook)
        if self.last in self:
            super().__setitem__(self.last, self.pop(self.last))


def hook_gradients(model: ModelParameters, hook: Callable[[int, Tensor], None]) -> list[RemovableHandle]:
    """Let `hook(index, parameter)` be called for each gradient of `model`; return the handles, by registration index.

    It comes after all other hooks on that gradient, which may change it. Gradients of several devices, each of which
    has a thread of autograd's, come one at a time.
    """
    called = serial(hook) if len(model.devices) > 1 else hook
    return [
        _hooks_of(parameter).add_last(functools.partial(called, index)) for index, parameter in enumerate(model.tensors)
    ]


def serial(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` so that a thread that calls it waits for another that has; one may call it within itself."""
    lock = threading.RLock()

    def one_at_a_time(*arguments: object) -> None:
        with lock:
            function(*arguments)

    return one_at_a_time


def remove(handles: Iterable[RemovableHandle]) -> None:
    """Take hooks away."""
    for handle in handles:
        handle.remove()


def _hooks_of(parameter: nn.Parameter) -> GradientHooks:
    former = parameter._post_accumulate_grad_hooks
    if isinstance(former, GradientHooks):
        return former
    hooks = GradientHooks()
    if former:  # kept as it is, for it is from there that handles take their hooks away
        hooks[RemovableHandle(hooks).id] = functools.partial(_call_all, former)
    parameter._post_accumulate_grad_hooks = hooks
    return hooks


def _call_all(hooks: Mapping[int, GradientHook], parameter: Tensor) -> None:
    for hook in tuple(hooks.values()):
        hook(parameter)
