"""Training loops as a user writes them, over each wrapper."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ddpexec

KINDS = ("torch", "ddpexec", "fsdp2")
"""Wrappers of two ranks; `hsdp:2` takes four."""
BLOCKS, WIDTH, BATCH = 3, 32, 4


def wrapped(kind: str, world_size: int = 2) -> nn.Module:
    """Return a small model, the same on every rank, under a wrapper."""
    torch.manual_seed(0)
    net: Any = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(BLOCKS)))
    if kind == "torch":
        return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.005)
    if kind == "ddpexec":
        return ddpexec.DistributedDataParallel(net, bucket_cap_mb=0.005)
    shape = (world_size // 2, 2) if kind == "hsdp:2" else (world_size,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for block in net:
        fully_shard(block, mesh=mesh)
    sharded: nn.Module = fully_shard(net, mesh=mesh)
    return sharded


def batches(steps: int, rank: int) -> Iterator[Tensor]:
    """Yield the batches of a rank, by a DataLoader."""
    samples = torch.randn(steps * BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))
    for (batch,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(samples), batch_size=BATCH):
        yield batch


def train(model: nn.Module, steps: int, rank: int, *, accumulate: int = 1) -> list[Tensor]:
    """Train for as many backwards, the optimizer after each `accumulate`-th; return what became of the parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number, batch in enumerate(batches(steps, rank), 1):
        last = number % accumulate == 0
        with nullcontext() if last else model.no_sync():  # type: ignore[operator]
            model(batch).square().mean().backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    return [getattr(each, "_local_tensor", each).detach().clone() for each in model.parameters()]
