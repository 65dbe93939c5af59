"""Another process group while training goes on, groups in turn, and a mesh with a dimension for tensor parallelism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import OptionError
from ddpexec.groups import process_groups
from tests.ddpexec.groups import ranks

STOCK = nn.parallel.DistributedDataParallel


def trained(kind: Any, rank: int, options: dict[str, Any], hooked: bool) -> list[Any]:
    """Return the gradients of steps on three ranks, on ranks 0 and 1, and on all three again."""
    torch.manual_seed(0)
    ddp = kind(nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 20)), bucket_cap_mb=0.0005, **options)
    if hooked:

        def hook(state, bucket):  # type: ignore[no-untyped-def]
            work = dist.all_reduce(bucket.buffer().div_(7), group=ddp.process_group, async_op=True)
            return work.get_future().then(lambda future: future.value()[0])

        ddp.register_comm_hook(None, hook)
    taken = []
    pair = dist.new_group([0, 1])
    for group, members in ((None, (0, 1, 2)), (pair, (0, 1)), (dist.group.WORLD, (0, 1, 2))):
        if group is not None:
            ddp._update_process_group(group)
        if rank in members:
            for step in range(4):
                ddp.zero_grad()
                x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))
                ddp(x).square().sum().backward()
                taken += [parameter.grad.clone() for parameter in ddp.parameters()]
    return taken


@ranks.on(3)
def test_gradients_follow_the_process_group_as_torchs_do(rank: int) -> None:
    for options in ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
        for hooked in (False, True):
            ours, theirs = (trained(kind, rank, options, hooked) for kind in (DistributedDataParallel, STOCK))
            assert len(ours) == 4 * 4 * (2 if rank == 2 else 3)
            for mine, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)


@ranks.on(3)
def test_groups_in_turn_must_have_the_same_ranks(rank: int) -> None:
    groups = [dist.new_group([0, 1]), dist.new_group([0, 2])]
    if rank == 0:
        both = r"process group 0 has the ranks \[0, 1\], process group 1 the ranks \[0, 2\]"
        with pytest.raises(OptionError, match=both):
            DistributedDataParallel(nn.Linear(2, 2), process_group=groups)
    dist.barrier()  # or others were still connecting


@ranks.on(2)
def test_what_was_registered_stays_with_another_process_group(rank: int) -> None:
    """A buffer hook, the rate of logging and that nothing is sent stay as they are."""
    calls: dict[Any, list[list[str]]] = {DistributedDataParallel: [], STOCK: []}
    for kind, names in calls.items():
        ddp = kind(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        ddp._register_buffer_comm_hook(None, lambda state, buffers, names=names: names.append(sorted(buffers)))
        for step in range(3):
            if step == 1:
                ddp._update_process_group(dist.group.WORLD)
            ddp(torch.ones(3, 4)).sum().backward()
    assert calls[DistributedDataParallel] == calls[STOCK] != []
    silent = DistributedDataParallel(nn.Linear(2, 2), comm="noop")
    ddp = DistributedDataParallel(nn.Linear(2, 2))
    ddp._set_ddp_runtime_logging_sample_rate(7)
    for each in (silent, ddp):
        each._update_process_group(dist.group.WORLD)
    assert silent.communicator.noop
    assert not ddp.communicator.noop
    assert ddp.reducer.stats.rate == 7


@pytest.mark.parametrize(
    ("told", "device", "backend"),
    [
        ("gloo", "cpu", "gloo"),
        ("nccl", "cuda", "nccl"),
        ("cpu:gloo,cuda:nccl", "cuda", "nccl"),
        ("cpu:gloo,cuda:nccl", "cpu", "gloo"),
        ("gloo", "cuda", "gloo"),
        ("mpi4py", "cpu", "mpi"),
        (None, "cpu", "gloo"),
    ],
)
def test_records_name_what_carries_a_device_s_tensors(
    monkeypatch: pytest.MonkeyPatch, told: str | None, device: str, backend: str
) -> None:
    monkeypatch.setattr(process_groups, "is_registered", lambda group: True)
    monkeypatch.setattr(dist, "get_backend", lambda group=None: told)
    group: Any = None if told is None else object()
    assert process_groups.backend_for(group, torch.device(device)) == backend


def trained_over(kind: Any, mesh: Any, options: dict[str, Any]) -> list[Tensor]:
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
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    for options in ({}, {"gradient_as_bucket_view": True}):
        ours, theirs = (trained_over(kind, mesh, options) for kind in (DistributedDataParallel, STOCK))
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.shape == other.shape
            assert torch.equal(mine, other), options
    assert ours[0].shape == (4, 4)
