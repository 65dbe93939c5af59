"""What a step sends beside its gradients, which no estimate or capture prices: noticed, and told in a sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ddpsim.common.units import format_count

_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_NO_DATA = ("wait_tensor", "monitored_barrier_")
_BY_NORM = 2
"""torch's SyncBatchNorm gathers the statistics of all ranks in forward, and sums those of the gradient in backward."""


def is_collective(namespace: str, name: str) -> bool:
    """Return whether an operator that was dispatched belongs to `torch.distributed`."""
    return namespace in _NAMESPACES and name not in _NO_DATA


def describe_synchronised_norms(module: nn.Module) -> Iterator[str]:
    """Yield a sentence where layers of `module` send on their own whatever wraps it."""
    if norms := sum(isinstance(each, nn.SyncBatchNorm) for each in module.modules()):
        yield (
            f"{format_count(norms, 'SyncBatchNorm layer')} take {_BY_NORM * norms} collectives a step, an "
            "all-gather in forward and an allreduce in backward each: they are left out, and computation waits for each"
        )


def describe_calls(sent: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield a sentence on the collectives that a step calls itself, whose bytes `sent` has by name."""
    if sent:
        calls = Counter({name: len(sizes) for name, sizes in sent.items()})
        listed = ", ".join(f"{name} {format_count(count, 'time')}" for name, count in calls.most_common())
        size = sum(map(sum, sent.values()))
        yield f"the step itself calls torch.distributed's {listed} ({size} bytes): they are left out"


@contextmanager
def pretended_group() -> Iterator[None]:
    """Let a step find a process group of two ranks, torch's own that sends nothing, so that its collectives show.

    SyncBatchNorm computes as one rank's then: with a group it takes tensors of a GPU alone.
    """
    if not dist.is_available() or dist.is_initialized():
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with mock.patch.object(nn.SyncBatchNorm, "forward", _BatchNorm.forward):
            yield
    finally:
        dist.destroy_process_group()


def count_sent() -> int:
    """Return how many collectives the default process group has run; 0 without one."""
    if not dist.is_available() or not dist.is_initialized():
        return 0
    world = dist.group.WORLD
    counted: Any = world  # torch's stubs lack the method
    return 0 if world is None else int(counted._get_sequence_number_for_group())


def size_of(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of `tensors`."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
