"""Torch modules in ddpsim's words: buffers, dtypes and devices as data."""

from __future__ import annotations

import torch
from torch import nn

from ddpsim.workload import Buffer


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
