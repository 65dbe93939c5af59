"""A machine without a GPU that answers to cuda devices with its CPU, so that torch's tests for GPUs can run on it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

FACTORIES = (
    "ones", "zeros", "rand", "randn", "empty", "full", "tensor", "arange", "eye", "ones_like", "zeros_like",
    "rand_like", "randn_like", "empty_like", "randint", "as_tensor",
)  # fmt: skip


def cuda_as_cpu() -> None:
    """Map devices, `.cuda()`, `.to()`, factories, module constructors and streams to the CPU."""
    import torch
    from torch import nn

    from tests.ddpexec.streams import Nothing

    ranks = int(os.environ.get("WORLD_SIZE", "2"))
    torch.cuda.device_count = lambda: 2 * ranks
    torch.cuda.current_device = lambda: 0
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    for owner in (torch.Tensor, nn.Module):
        owner.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
        owner.to = on_cpu(owner.to, positional=True)  # type: ignore[method-assign]
    for name in FACTORIES:
        setattr(torch, name, on_cpu(getattr(torch, name)))
    for module in (nn.Linear, nn.Conv2d, nn.BatchNorm2d, nn.BatchNorm1d, nn.Embedding):
        module.__init__ = on_cpu(module.__init__)  # type: ignore[method-assign]
    torch.cuda.device = torch.cuda.stream = torch.cuda.Stream = torch.cuda.Event = Nothing  # type: ignore[misc]
    torch.Stream = torch.Event = Nothing  # type: ignore[misc,assignment]
    torch.cuda.current_stream = torch.accelerator.current_stream = lambda *_, **__: Nothing()  # type: ignore[assignment]


def _cpu(device: Any) -> Any:
    """Return the CPU for anything that names a cuda device, everything else as it is."""
    import torch

    if isinstance(device, bool):
        return device
    cuda = isinstance(device, int) or str(device).startswith("cuda")
    return torch.device("cpu") if cuda and isinstance(device, (int, str, torch.device)) else device


def on_cpu(function: Callable[..., Any], *, positional: bool = False) -> Callable[..., Any]:
    @functools.wraps(function)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _cpu(kwargs["device"])
        if positional and len(args) > 1:
            args = (args[0], _cpu(args[1]), *args[2:])
        return function(*args, **kwargs)

    return mapped
