"""Random models and options: gradients equal torch DDP's bit for bit, launches in the order the policy says.

python -m tests.exec.test_random_models 200        # as many models, on 2 and on 3 ranks
"""

from __future__ import annotations

import copy
import sys
import warnings
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from ddpexec import flat
from ddpexec.ddp import DistributedDataParallel
from ddpsim.bucketing import LaunchQueue
from tests.exec import ranks
from tests.exec.random_models import WIDTH, loss_of, random_case

STEPS = 4


def launched_order(ddp: DistributedDataParallel) -> tuple[list[int], list[int]]:
    """Return the buckets launched in the last backward, and those a `LaunchQueue` gives for the same arrivals."""
    reducer = ddp.reducer
    queue = LaunchQueue(reducer.plan.groups())
    expected: list[int] = []
    for place, index in enumerate(reducer.arrival):
        expected += queue.start(reducer._unused) if place == 0 else []
        expected += queue.ready(index)
    return list(reducer.launch_order), expected


def one_case(rank: int, seed: int) -> None:
    base, options, how = random_case(seed)
    nets = [copy.deepcopy(base) for _ in range(2)]
    kinds = (DistributedDataParallel, nn.parallel.DistributedDataParallel)
    ddps: list[Any] = [kind(net, **options) for kind, net in zip(kinds, nets, strict=True)]
    for step in range(STEPS):
        picked = 100 * seed + step + (rank if how["by_rank"] and options["find_unused_parameters"] else 0)
        picked = seed if options.get("static_graph") else picked
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1000 * seed + 10 * step + rank))
        local = how["accumulate"] and step % 2 == 0 and not options.get("static_graph")
        for ddp in ddps:
            if step % 2 == 0:
                ddp.zero_grad(set_to_none=how["set_to_none"])
            with ddp.no_sync() if local else nullcontext():
                loss_of(ddp(x, picked)).backward()
        for (name, mine), theirs in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
            what = (seed, step, name, options, how)
            assert (mine.grad is None) == (theirs.grad is None), what
            if mine.grad is not None:
                dense = mine.grad.to_dense() if mine.grad.is_sparse else mine.grad
                torch.testing.assert_close(dense, theirs.grad.to_dense(), rtol=0, atol=0, equal_nan=True, msg=str(what))
        assert torch.equal(nets[0].steps, nets[1].steps)
        if not local and not ddps[0].static_graph:
            launched, expected = launched_order(ddps[0])
            assert launched == expected, (seed, step)


def cases(rank: int, first: int, count: int) -> None:
    warnings.simplefilter("ignore")
    for seed in range(first, first + count):
        try:
            with mock.patch.object(flat, "EAGER_BYTES", 90 if seed % 2 else flat.EAGER_BYTES):
                one_case(rank, seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {random_case(seed)[1:]}: {error}") from error


@pytest.mark.parametrize(("world_size", "count"), [(2, 16), (3, 8)])
def test_random_models_equal_torch_bit_for_bit(world_size: int, count: int) -> None:
    ranks.run(world_size, cases, 0, count)


if __name__ == "__main__":
    for size in (2, 3):
        ranks.run(size, cases, 0, int(sys.argv[1]), timeout_s=3000)
        print(f"{sys.argv[1]} models on {size} ranks: gradients and launch order equal")
