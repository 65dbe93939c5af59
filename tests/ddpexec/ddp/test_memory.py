"""What a wrapped module keeps alive, beside torch's DDP with the same options."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from tests.ddpexec.groups import ranks


def live_bytes() -> int:
    """Return the bytes of all storages that a tensor Python knows of lies in, gradients included."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) in (torch.Tensor, nn.Parameter)]  # no fakes of other tests
    tensors += [t.grad for t in tensors if t.is_leaf and t.grad is not None]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def kept(kind: Any, options: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes that training with DDP adds: all that Python sees, and the buckets' where it cannot."""
    before = live_bytes()
    ddp = kind(nn.Sequential(*(nn.Linear(100, 100) for _ in range(6))), **options)
    for _ in range(3):
        ddp(torch.ones(2, 100)).sum().backward()
    hidden = 0
    if kind is nn.parallel.DistributedDataParallel and not options["gradient_as_bucket_view"]:
        hidden = sum(p.numel() * p.element_size() for p in ddp.parameters())  # the C++ reducer's buckets
    return live_bytes() - before, hidden


@ranks.on(1)
def test_live_bytes_are_within_two_percent_of_torchs(rank: int) -> None:
    torch.manual_seed(0)
    modes: tuple[dict[str, Any], ...] = (
        {}, {"find_unused_parameters": True}, {"static_graph": True}, {"batched_grad_copy": True},
    )  # fmt: skip
    for view in (False, True):
        for cap, mode in itertools.product((0.0, 0.1, 25.0), modes):
            options = {"gradient_as_bucket_view": view, "bucket_cap_mb": cap, **mode}
            ours, theirs = (
                sum(kept(kind, options)) for kind in (DistributedDataParallel, nn.parallel.DistributedDataParallel)
            )
            assert ours == pytest.approx(theirs, rel=0.02), options
