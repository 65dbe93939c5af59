"""A device mesh with a dimension for tensor parallelism beside the one for data, beside torch's DDP."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ddpexec.ddp.wrapper import DistributedDataParallel
from tests.ddpexec.groups import ranks


def trained(kind: Any, mesh: Any, options: dict[str, Any]) -> list[Tensor]:
    """Return this rank's parts of the parameters, and their gradients, after some steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    parallelize_module(net, mesh["model"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    ddp = kind(net, device_mesh=mesh["data"], **options)
    parameters = list(ddp.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + mesh["data"].get_local_rank()))
        ddp(x).square().sum().backward()
        optimizer.step()
    return [*(p.detach() for p in parameters), *(p.grad for p in parameters)]


@ranks.on(4)
def test_a_module_that_is_tensor_parallel_too_trains_as_under_torchs(rank: int) -> None:
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    for options in ({}, {"gradient_as_bucket_view": True}):
        ours, theirs = (
            trained(kind, mesh, options) for kind in (DistributedDataParallel, nn.parallel.DistributedDataParallel)
        )
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.shape == other.shape
            assert torch.equal(mine, other), options
    assert ours[0].shape == (4, 4)
