"""What ranks over MPI do, beside gloo: `mpirun -np 2 python -m tests.ddpexec.groups.mpi_program`.

Rank 0 prints `all equal` where every sum, message and weight is as it should be.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddpexec import DistributedDataParallel, Tuner, trace
from ddpexec.errors import OptionError
from ddpexec.groups.launched import join_launched
from ddpexec.tuning.observing import Watch
from ddpsim.trace.json import read_trace


def main() -> None:
    """Join over MPI, and compare."""
    with join_launched("run", "mpi", timeout_s=60) as rank:
        size, mine = dist.get_world_size(), dist.get_rank()
        assert rank.communicator.backend == "mpi"
        reductions(mine, size)
        movements(mine, size)
        if size > 1:
            assert weights(torch.nn.parallel.DistributedDataParallel, mine)
            assert weights(DistributedDataParallel, mine)
            recorded(mine)
        dist.barrier()
        if mine == 0:
            print("all equal", flush=True)
    sys.stdout.flush()


def reductions(rank: int, size: int) -> None:
    """Sum, average, multiply, of every type, in whole tensors and in parts."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        tensor = torch.full((70_000,), rank + 1).to(dtype)
        dist.all_reduce(tensor)
        assert tensor.unique().tolist() == [size * (size + 1) / 2], dtype
        dist.all_reduce(tensor, dist.ReduceOp.MIN)
    strided = torch.full((3, 4), float(rank)).t()
    dist.all_reduce(strided, dist.ReduceOp.AVG)
    assert strided.unique().tolist() == [(size - 1) / 2]
    used = torch.tensor([rank == 0, False])
    dist.all_reduce(used)
    assert used.tolist() == [True, False]
    part = torch.empty(3)
    dist.reduce_scatter_tensor(part, torch.arange(3.0 * size))
    assert part.tolist() == [size * (3.0 * rank + each) for each in range(3)]
    uneven = [torch.ones(1 + each) for each in range(size)]
    dist.reduce_scatter(mine := torch.empty(1 + rank), uneven)
    assert mine.tolist() == [float(size)] * (1 + rank)
    for refused, operation in ((torch.ones(1), dist.ReduceOp.BAND), (torch.ones(1, dtype=torch.complex32), None)):
        try:
            dist.group.WORLD.allreduce([refused], operation)
        except OptionError as error:
            assert "MPI has no" in str(error)  # noqa: PT017
        else:
            raise AssertionError(refused)


def movements(rank: int, size: int) -> None:
    """Broadcast, gather, exchange, send."""
    tensor = torch.full((5,), float(rank))
    dist.broadcast(tensor, size - 1)
    assert tensor.tolist() == [size - 1.0] * 5
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": each} for each in range(size)]
    whole = torch.empty(2 * size)
    dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    assert whole.tolist() == [float(each // 2) for each in range(2 * size)]
    received = torch.empty(size)
    dist.all_to_all_single(received, torch.arange(float(size)) + 10 * rank)
    assert received.tolist() == [10.0 * each + rank for each in range(size)]
    parts = [torch.empty(1 + rank) for _ in range(size)]
    dist.all_to_all(parts, [torch.full((1 + each,), float(rank)) for each in range(size)])
    assert [part.tolist() for part in parts] == [[float(each)] * (1 + rank) for each in range(size)]
    if size > 1 and rank < 2:
        large = torch.full((300_000,), float(rank))
        there = torch.empty_like(large)
        works = [dist.isend(large, 1 - rank), dist.irecv(there, 1 - rank)]
        for work in works:
            work.wait()
        assert there.unique().tolist() == [1.0 - rank]
    pair = dist.new_group([0, 1]) if size > 1 else None
    if rank < 2 and pair is not None:
        counted = torch.ones(1)
        dist.all_reduce(counted, group=pair)
        assert counted.item() == 2
        dist.destroy_process_group(pair)


def weights(wrapper: Any, rank: int) -> bool:
    """Return whether training over MPI and over gloo ends with the same weights; two ranks' sums know one order."""
    ends = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.BatchNorm1d(300), nn.Linear(300, 3))
        model = wrapper(module, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        torch.manual_seed(rank)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(8, 20)).square().mean().backward()
            optimizer.step()
        ends.append(torch.cat([each.detach().flatten() for each in module.parameters()]))
    return bool(torch.equal(*ends) if dist.get_world_size() == 2 else torch.allclose(*ends))


def recorded(rank: int) -> None:
    """Trace a training, then stamp it for a tuner: both say that MPI carries it, and a tuner's words go beside it."""
    box = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(box)
    model = torch.nn.parallel.DistributedDataParallel(nn.Linear(20, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    with trace(box[0], every=1):
        for _ in range(10):
            step()
    dist.barrier()
    assert read_trace(Path(box[0])).backend == "mpi"
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    tuner = Tuner(model)
    for _ in range(15):
        step()
        tuner.step()
    assert tuner.refused is None
    tuner.close()
    assert Watch(model).job.backend == "mpi"


if __name__ == "__main__":
    main()
