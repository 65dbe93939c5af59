"""Optimizers that torch's `_apply_optimizer_in_backward` has put on parameters: they step when a bucket is reduced."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

OPTIMIZERS = "_in_backward_optimizers"


def take_over(parameters: Sequence[nn.Parameter]) -> bool:
    """Remove the hooks that would step on unreduced gradients; return whether any parameter has an optimizer."""
    owned = [parameter for parameter in parameters if hasattr(parameter, OPTIMIZERS)]
    if owned:
        from torch.distributed.optim.apply_optimizer_in_backward import param_to_optim_hook_handle_map

        for parameter in owned:
            for handle in param_to_optim_hook_handle_map.get(parameter, ()):  # type: ignore[no-untyped-call]
                handle.remove()
    return bool(owned)


def step(parameters: Sequence[nn.Parameter]) -> None:
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
