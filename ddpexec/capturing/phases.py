"""Where the phases of a training step begin: hooks on its module and on autograd's entry, told to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ddpsim.common.errors import WorkloadError


class PhaseListener(Protocol):
    """The callbacks of a step, in the order in which they are called."""

    def on_forward(self, inputs: Sequence[object]) -> None:
        """Forward of the module begins with `inputs`, positional ones first."""

    def on_backward(self) -> None:
        """Backward begins."""

    def on_gradient(self, index: int, parameter: Tensor) -> None:
        """The gradient of the parameter registered as `index` is in its `.grad`."""

    def on_backward_end(self) -> None:
        """Backward is over."""


class Phases:
    """Watches one module's training steps, of one forward and one backward each.

    A forward without gradients (evaluation between steps), one inside backward (a checkpoint's), and a backward inside
    backward (a reentrant checkpoint's) are no phases of their own.

    Args:
        module: that is trained.
        parameters: whose gradients are told, in registration order.
        listener: is told.
    """

    def __init__(self, module: nn.Module, parameters: Sequence[Tensor], listener: PhaseListener) -> None:
        self._module, self._parameters, self._listener = module, parameters, listener
        self._steps = 0
        self._forward = self._backward = self._inside = False
        self._handles: list[Callable[[], None]] = []

    def install(self) -> None:
        """Put the hooks in place."""
        self._handles.append(self._module.register_forward_pre_hook(self._begin_forward, with_kwargs=True).remove)
        for index, parameter in enumerate(self._parameters):
            hook = self._gradient_hook(index)
            handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
            self._handles.append(handle.remove)
        self._handles.append(self._watch_backward())

    def remove(self) -> None:
        """Take every hook away again."""
        while self._handles:
            self._handles.pop()()

    def end_step(self) -> None:
        """Close the current step.

        Raises:
            WorkloadError: it had no forward, or no backward.
        """
        missing = "backward" if self._forward else "forward of the module"
        if not self._forward or not self._backward:
            remedy = "give a step with one forward of the module it trains, one backward, and the optimizer"
            raise WorkloadError(f"no {missing}", place=f"iteration {self._steps}", remedy=remedy)
        self._steps += 1
        self._forward = self._backward = False

    def _begin_forward(self, module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        if self._inside or not torch.is_grad_enabled():
            return
        self._hook_once("forward", self._forward)
        self._forward = True
        self._listener.on_forward([*args, *kwargs.values()])

    def _gradient_hook(self, index: int) -> Callable[[Tensor], None]:
        tell = self._listener.on_gradient
        return lambda parameter: tell(index, parameter)

    def _watch_backward(self) -> Callable[[], None]:
        """Stand before `torch.autograd.backward`, through which `loss.backward()` goes; return the undoing."""
        original = torch.autograd.backward

        def backward(*args: object, **kwargs: object) -> None:
            if self._inside:
                return original(*args, **kwargs)  # type: ignore[arg-type]
            self._hook_once("backward", self._backward)
            self._backward = self._inside = True
            self._listener.on_backward()
            try:
                original(*args, **kwargs)  # type: ignore[arg-type]
            finally:
                self._inside = False
            return self._listener.on_backward_end()

        torch.autograd.backward = backward

        def restore() -> None:
            torch.autograd.backward = original

        return restore

    def _hook_once(self, phase: str, before: bool) -> None:
        if before:
            remedy = f"give a step with one {phase}; accumulation is `--accumulate` of the prediction"
            raise WorkloadError(f"a second {phase}", place=f"iteration {self._steps}", remedy=remedy)


def batch_size_of(inputs: Sequence[object]) -> int | None:
    """Return the first dimension of the first tensor that forward is given, None where it is given none."""
    first = next((each for each in inputs if isinstance(each, Tensor) and each.dim() > 0), None)
    return None if first is None else int(first.shape[0])


def precision_of(parameters: Sequence[Tensor]) -> str:
    """Return the precision a step computes in, seen at the start of its forward: `fp32`, `tf32`, `bf16` or `amp`.

    Args:
        parameters: all, frozen ones too. Without autocast it is the one that most of their elements have.
    """
    device = parameters[0].device
    if _autocasting_on(device):
        return "amp"
    floating = [parameter for parameter in parameters if parameter.is_floating_point()]
    narrow = sum(parameter.numel() for parameter in floating if parameter.dtype == torch.bfloat16)
    if narrow > sum(parameter.numel() for parameter in floating) / 2:
        return "bf16"
    tf32 = device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if tf32 else "fp32"


def autocast_dtype_of(parameters: Sequence[Tensor]) -> str | None:
    """Return the 16-bit type that a GPU's autocast casts to at the start of forward, as `Workload` has it.

    None where it is off, and on a processor: its own default is bfloat16, that of a GPU is float16, and which of them
    the user stated cannot be told.
    """
    on = [kind for kind in _autocasting_on(parameters[0].device) if kind == "cuda"]
    return name_autocast_dtype(map(torch.get_autocast_dtype, on))


def name_autocast_dtype(dtypes: Iterable[torch.dtype]) -> str | None:
    """Return `bfloat16` where that is one of the types that a step's autocast casts to, as `Workload` has it."""
    return "bfloat16" if torch.bfloat16 in dtypes else None


def _autocasting_on(device: torch.device) -> list[str]:
    """Return the kinds of devices of a step on `device` that autocast is on for."""
    return list(filter(torch.is_autocast_enabled, ("cpu", "cuda") if device.type == "meta" else (device.type,)))
