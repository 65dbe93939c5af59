"""Hooks: where autograd has a gradient, where forward is about to use parameters, where a bucket is reduced."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

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


OPTIMIZERS = "_in_backward_optimizers"


def take_over_optimizers(parameters: Sequence[nn.Parameter]) -> bool:
    """Remove the hooks that would step on unreduced gradients; return whether any parameter has an optimizer."""
    owned = [parameter for parameter in parameters if hasattr(parameter, OPTIMIZERS)]
    if owned:
        from torch.distributed.optim.apply_optimizer_in_backward import param_to_optim_hook_handle_map

        for parameter in owned:
            for handle in param_to_optim_hook_handle_map.get(parameter, ()):  # type: ignore[no-untyped-call]
                handle.remove()
    return bool(owned)


def step_in_backward(parameters: Sequence[nn.Parameter]) -> None:
    """Step the optimizers of `parameters`, whose gradients are reduced, and drop those gradients.

    Called for each bucket while later ones are still on the wire. A parameter without a gradient, as no rank used it,
    is not stepped.
    """
    for parameter in parameters:
        optimizers = getattr(parameter, OPTIMIZERS, None)
        if optimizers is not None and parameter.grad is not None:
            for optimizer in optimizers:
                optimizer.step()
            parameter.grad = None


Announce = Callable[[Sequence[int]], bool]
"""Called with registration indices before forward uses those parameters; says whether forward was held up."""


@runtime_checkable
class AnnouncesUse(Protocol):
    """A module that announces when its forward is about to use a parameter, as timed layers do."""

    def announce_forward(self, announce: Announce) -> None:
        """Call `announce` before each use from now on."""


class ForwardPoints:
    """Announces parameters before the modules that own them run.

    A parameter whose owner never runs in the first forward is used by another module's code: the next module around
    it that does run announces it from then on, and if there is none, the whole forward. Before that first forward no
    update can be pending.

    Args:
        module: in whose forward the parameters are used.
        model: its parameters.
        announce: what is called.

    Attributes:
        at_start: registration indices that are announced as forward begins.
        handles: of its hooks, the same list from beginning to end.
    """

    def __init__(self, module: nn.Module, model: ModelParameters, announce: Announce) -> None:
        self.announce = announce
        self.at_start: tuple[int, ...] = ()
        self.handles: list[RemovableHandle] = []
        self._ran: set[nn.Module] | None = None
        self._indices: dict[nn.Module, list[int]] = {}
        if isinstance(module, AnnouncesUse):
            module.announce_forward(announce)
            return
        numbers = {tensor: index for index, tensor in enumerate(model.tensors)}
        self._around: dict[nn.Module, nn.Module] = {
            child: parent for parent in module.modules() for child in parent.children()
        }
        for owner in module.modules():
            own = [numbers[p] for p in owner.parameters(recurse=False) if p in numbers]
            if own:
                self._indices[owner] = own
        self._ran = set()
        self.handles += [each.register_forward_pre_hook(self._note) for each in module.modules()]

    def learn(self) -> None:
        """Know, from the forward that has just ended, which modules announce which parameters."""
        if self._ran is None:
            return
        ran, self._ran = self._ran, None
        self.remove()
        announced: dict[nn.Module, list[int]] = {}
        start: list[int] = []
        for owner, indices in self._indices.items():
            teller: nn.Module | None = owner
            while teller is not None and teller not in ran:
                teller = self._around.get(teller)
            if teller is None:
                start += indices
            else:
                announced.setdefault(teller, []).extend(indices)
        self.at_start = tuple(sorted(set(start)))
        self.handles += [self._hook(module, tuple(indices)) for module, indices in announced.items()]

    def remove(self) -> None:
        """Announce nothing any more."""
        remove(self.handles)
        self.handles.clear()

    def _note(self, module: nn.Module, inputs: Any) -> None:
        if self._ran is not None:
            self._ran.add(module)
            if module in self._indices:
                self.announce(self._indices[module])

    def _hook(self, module: nn.Module, indices: tuple[int, ...]) -> RemovableHandle:
        def announce(*_: Any) -> None:
            self.announce(indices)

        return module.register_forward_pre_hook(announce)
