"""Where a training loop is: hooks that torch has for all modules and all optimizers, and two functions stood before.

Nothing is asked of the loop: forward begins where the trained module is called, backward where autograd is entered, the
optimizer tells by its own hooks, and the next batch is what a `DataLoader` is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from ddpexec.ddp.compiling import disable_compile


class LoopListener(Protocol):
    """What is told of a loop."""

    def on_root(self, module: nn.Module, inputs: tuple[Any, ...]) -> nn.Module | None:
        """A module with parameters to train is called for the first time; return the one to watch, None for none."""

    def on_forward(self) -> None:
        """The watched module is called, with gradients, outside backward."""

    def on_forward_end(self) -> None:
        """It has returned."""

    def on_backward(self) -> None:
        """Backward begins."""

    def on_backward_end(self) -> None:
        """Backward is over."""

    def on_optimizer(self) -> None:
        """An optimizer's step begins, outside backward."""

    def on_optimizer_end(self, inside: bool) -> None:
        """An optimizer's step is over; `inside` backward, where steps follow each gradient."""

    def on_input(self, begin_s: float, end_s: float) -> None:
        """A DataLoader was asked for a batch at `begin_s` and had it at `end_s`, on `time.perf_counter`."""


class LoopHooks:
    """Watches the loops of this process from `install` to `remove`.

    A forward without gradients, of a module in evaluation, or within backward (a checkpoint's), is none.
    """

    def __init__(self, listener: LoopListener) -> None:
        self._listener = listener
        self._undo: list[Callable[[], object]] = []
        self._backward = self._forward = False
        self._find: Any = None

    def install(self) -> None:
        """Put the hooks in place."""
        self._find = register_module_forward_pre_hook(self._see_first_forward)
        self._undo.append(self._find.remove)
        self._undo.append(register_optimizer_step_pre_hook(self._step_begins).remove)
        self._undo.append(register_optimizer_step_post_hook(self._step_ended).remove)
        self._patch_before(torch.autograd, "backward", self._run_backward)
        self._patch_before(dataloader._BaseDataLoaderIter, "__next__", self._time_next_batch)

    def remove(self) -> None:
        """Take every hook away again."""
        while self._undo:
            self._undo.pop()()

    def _patch_before(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        def instead(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        setattr(owner, name, instead)
        self._undo.append(lambda: setattr(owner, name, original))

    @disable_compile
    def _see_first_forward(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not self._counts(module) or not any(each.requires_grad for each in module.parameters()):
            return
        self._find.remove()
        watched = self._listener.on_root(module, inputs)
        if watched is None:
            return
        self._undo.append(watched.register_forward_pre_hook(self._forward_begins, prepend=True).remove)
        self._undo.append(watched.register_forward_hook(self._forward_ended).remove)
        if watched is module:
            self._forward_begins(module, inputs)

    def _counts(self, module: nn.Module) -> bool:
        return torch.is_grad_enabled() and module.training and not self._backward

    @disable_compile
    def _forward_begins(self, module: nn.Module, _: Any) -> None:
        self._forward = self._counts(module)
        if self._forward:
            self._listener.on_forward()

    @disable_compile
    def _forward_ended(self, module: nn.Module, *_: Any) -> None:
        if self._forward:
            self._forward = False
            self._listener.on_forward_end()

    def _run_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._backward:
            return original(*args, **kwargs)
        self._backward = True
        self._listener.on_backward()
        try:
            done = original(*args, **kwargs)
        finally:
            self._backward = False
        self._listener.on_backward_end()
        return done

    @disable_compile
    def _step_begins(self, *_: Any) -> None:
        if not self._backward:
            self._listener.on_optimizer()

    @disable_compile
    def _step_ended(self, *_: Any) -> None:
        self._listener.on_optimizer_end(self._backward)

    def _time_next_batch(self, original: Callable[..., Any], iterator: Any) -> Any:
        begin = time.perf_counter()
        batch = original(iterator)
        self._listener.on_input(begin, time.perf_counter())
        return batch
