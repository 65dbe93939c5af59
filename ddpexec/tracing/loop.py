"""Where a training loop is: hooks that torch has for all modules and all optimizers, and two functions stood before.

Nothing is asked of the loop: forward begins where the trained module is called, backward where autograd is entered, the
optimizer tells by its own hooks, and the next batch is what a `DataLoader` is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from ddpexec.ddp.compiling import disable_compile
from ddpexec.timing.clock import Moment
from ddpexec.timing.observe import Observer, note_backward


class LoopStamps:
    """Stamps the open iteration of an observer as hooks tell of the loop; what opens one derives from it.

    Of several backwards or optimizers in one iteration it is from the first's beginning to the last's end.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._began: Moment | None = None

    def on_forward(self) -> None:
        """The watched module is called, with gradients, outside backward."""
        raise NotImplementedError

    def on_forward_end(self) -> None:
        """It has returned."""
        if (note := self._observer.note) is not None:
            note.returned = self._observer.now()
            if note.module is None:
                note.module = note.start, note.returned

    def on_backward(self) -> None:
        """Backward begins, or an optimizer's step outside it."""
        if self._observer.note is not None:
            self._began = self._observer.now()

    on_optimizer = on_backward

    def on_backward_end(self) -> None:
        """Backward is over."""
        if (note := self._observer.note) is not None and self._began is not None:
            note_backward(note, self._began if note.backward is None else note.backward[0], self._observer.now())

    def on_optimizer_end(self, inside: bool) -> None:
        """An optimizer's step is over; `inside` backward, where steps follow each gradient."""
        if (note := self._observer.note) is not None and not inside and self._began is not None:
            note.optimizer = self._began if note.optimizer is None else note.optimizer[0], self._observer.now()

    def on_input(self, begin_s: float, end_s: float) -> None:
        """A batch was requested of a DataLoader at `begin_s` and there at `end_s`, on `time.perf_counter`."""


Find = Callable[[nn.Module, tuple[Any, ...]], "tuple[nn.Module, LoopStamps] | None"]
"""Is given the first module with parameters to train that is called, and its inputs; returns what to watch, by what."""


class LoopHooks:
    """Watches the loops of this process from `install` to `remove`.

    A forward without gradients, of a module in evaluation, or within backward (a checkpoint's), is none.

    Args:
        find: called once.
        guard: stands around the beginning of each forward.
    """

    def __init__(self, find: Find, guard: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._find_watched, self._guard = find, guard
        self._listener: LoopStamps | None = None
        self._undo: list[Callable[[], object]] = []
        self._backward = self._forward = False
        self._find: Any = None

    def install(self) -> None:
        """Put the hooks in place."""
        # torch has global hooks for modules and optimizers, but none for `backward` and the loader's `__next__`: those
        # two functions are replaced, and put back by `remove`.
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
        # A global hook costs every module's call: it goes as soon as the trained module is known.
        self._find.remove()
        if (subject := self._find_watched(module, inputs)) is None:
            return
        watched, self._listener = subject
        self._undo.append(watched.register_forward_pre_hook(self._forward_begins, prepend=True).remove)
        self._undo.append(watched.register_forward_hook(self._forward_ended).remove)
        # This very forward has begun: the hook that was just registered comes too late for it.
        if watched is module:
            self._forward_begins(module, inputs)

    def _counts(self, module: nn.Module) -> bool:
        return torch.is_grad_enabled() and module.training and not self._backward

    @disable_compile
    def _forward_begins(self, module: nn.Module, _: Any) -> None:
        self._forward = self._counts(module)
        if self._forward and self._listener is not None:
            with self._guard():
                self._listener.on_forward()

    @disable_compile
    def _forward_ended(self, module: nn.Module, *_: Any) -> None:
        if self._forward:
            self._forward = False
            self._tell("on_forward_end")

    def _run_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # A backward inside a backward, as of a checkpoint, is a part of it.
        if self._backward:
            return original(*args, **kwargs)
        self._backward = True
        self._tell("on_backward")
        try:
            done = original(*args, **kwargs)
        finally:
            self._backward = False
        self._tell("on_backward_end")
        return done

    @disable_compile
    def _step_begins(self, *_: Any) -> None:
        # An optimizer may be stepped inside backward, bucket by bucket; that time is backward's.
        if not self._backward:
            self._tell("on_optimizer")

    @disable_compile
    def _step_ended(self, *_: Any) -> None:
        self._tell("on_optimizer_end", self._backward)

    def _time_next_batch(self, original: Callable[..., Any], iterator: Any) -> Any:
        begin = time.perf_counter()
        batch = original(iterator)
        self._tell("on_input", begin, time.perf_counter())
        return batch

    def _tell(self, what: str, *arguments: Any) -> None:
        if self._listener is not None:
            getattr(self._listener, what)(*arguments)
