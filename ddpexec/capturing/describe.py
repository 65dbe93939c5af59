"""Torch modules in ddpsim's words: buffers, dtypes and devices as data."""

from __future__ import annotations

import torch
from torch import nn

from ddpsim.workload import Buffer
from ddpsim.workload.gpus import gpu_model


def describe_buffers(module: nn.Module) -> tuple[Buffer, ...]:
    """Return the buffers DDP broadcasts, in registration order, each once."""
    return tuple(
        Buffer(name, tuple(b.shape), str(b.dtype).removeprefix("torch.")) for name, b in module.named_buffers()
    )


def device_model(device: torch.device) -> str:
    """Return what ddpsim calls the hardware of `device`: `cpu`, or the GPU's model."""
    return gpu_model(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type
