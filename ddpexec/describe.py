"""Torch modules in ddpsim's words: parameters and buffers as data."""

from __future__ import annotations

import torch
from torch import nn

from ddpsim.bucketing import Parameter
from ddpsim.workload import Buffer


def trained_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return names and parameters that DDP would reduce: registration order, each once, `requires_grad` only."""
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def describe_parameters(module: nn.Module) -> tuple[Parameter, ...]:
    """Return `trained_parameters` as the bucketing policy sees them."""
    sparse = _sparse_gradients(module)
    return tuple(
        Parameter(name, tuple(p.shape), dtype_name(p.dtype), str(p.device), name in sparse)
        for name, p in trained_parameters(module)
    )


def describe_buffers(module: nn.Module) -> tuple[Buffer, ...]:
    """Return the buffers DDP broadcasts, in registration order, each once."""
    return tuple(Buffer(name, tuple(b.shape), dtype_name(b.dtype)) for name, b in module.named_buffers())


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def device_model(device: torch.device) -> str:
    """Return what ddpsim calls the hardware of `device`: `cpu`, or the GPU's model as `V100`, `A100`, `H100`.

    A GPU that is none of the known families keeps the name its driver gives.
    """
    if device.type != "cuda":
        return device.type
    name = torch.cuda.get_device_name(device)
    known = ("GB200", "B200", "H200", "H100", "A100", "V100", "P100", "L40S", "L4", "A10G", "T4")
    return next((model for model in known if model in name), name.removeprefix("NVIDIA ").replace(" ", "-"))


def _sparse_gradients(module: nn.Module) -> set[str]:
    return {
        f"{name}.weight" if name else "weight"
        for name, child in module.named_modules()
        if isinstance(child, nn.Embedding | nn.EmbeddingBag) and child.sparse
    }
