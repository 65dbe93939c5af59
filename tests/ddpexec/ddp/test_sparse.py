"""Sparse gradients under communication hooks, mixed precision and uneven inputs, beside torch's DDP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel.distributed import _MixedPrecision

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.errors import ExecutionError
from ddpexec.groups.process_groups import round_robin
from tests.ddpexec.groups import ranks

BOTH = (DistributedDataParallel, nn.parallel.DistributedDataParallel)


class Words(nn.Module):
    """Two embeddings, each a bucket of its own, that are multiplied or added up, and a dense layer."""

    def __init__(self, add: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(10, 4, sparse=True)
        self.places = nn.Embedding(6, 4, sparse=True)
        self.head = nn.Linear(4, 3)
        self.add = add

    def forward(self, indices: Tensor) -> Tensor:
        words, places = self.words(indices), self.places(indices % 6)
        return self.head(torch.tanh(words + places if self.add else words * places))


def gradients(ddp: Any, rank: int, steps: int) -> list[Tensor]:
    """Return the gradients of each step, made dense."""
    taken = []
    for step in range(steps):
        ddp.zero_grad()
        indices = torch.randint(0, 10, (5,), generator=torch.Generator().manual_seed(10 * step + rank))
        ddp(indices).float().square().sum().backward()
        taken += [p.grad.to_dense() for p in ddp.parameters()]
    return taken


def same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other)


def halved(state, bucket):  # type: ignore[no-untyped-def]
    """Return another tensor than the bucket's, and send nothing."""
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer() * 0.5)
    return future


def averaged(state, bucket):  # type: ignore[no-untyped-def]
    """Average a copy."""
    copied = bucket.buffer().clone()
    work = dist.all_reduce(copied, async_op=True)
    return work.get_future().then(lambda _: copied / 2)


def in_place(state, bucket):  # type: ignore[no-untyped-def]
    """Average the bucket itself."""
    work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


@ranks.on(2)
def test_what_a_hook_returns_is_the_gradient(rank: int) -> None:
    hooks: tuple[Callable[..., Any] | None, ...] = (None, halved, averaged, in_place)
    for hook in hooks:
        results = []
        for kind in BOTH:
            ddp = kind(Words())
            if hook is not None:
                ddp.register_comm_hook(None, hook)
            results.append(gradients(ddp, rank, 3))
        same(*results)


def local(rank: int, dtype: torch.dtype, add: bool = False) -> list[Tensor]:
    """Return the gradients of a rank's first step, without duplicates in its input, computed in `dtype`."""
    net = Words(add).to(dtype)
    net(torch.randperm(6, generator=torch.Generator().manual_seed(rank))[:4]).float().square().sum().backward()
    return [p.grad.to_dense() for p in net.parameters()]


@ranks.on(2)
def test_mixed_precision_reduces_sparse_gradients_too(rank: int) -> None:
    """torch's own takes no sparse gradients under mixed precision; ours are those of the lower precision."""
    for reduced in (torch.bfloat16, torch.float32):
        ddp = DistributedDataParallel(Words(), mixed_precision=_MixedPrecision(torch.bfloat16, reduced, torch.bfloat16))
        ddp(torch.randperm(6, generator=torch.Generator().manual_seed(rank))[:4]).float().square().sum().backward()
        found = [p.grad.to_dense() for p in ddp.parameters()]
        parts = zip(*(local(r, torch.bfloat16) for r in range(2)), strict=True)
        same(found, [((a.to(reduced) + b.to(reduced)) / 2).float() for a, b in parts])


@ranks.on(2)
def test_embeddings_that_are_added_up_have_the_mean_gradient(rank: int) -> None:
    """Gradients that lie in the same memory are divided once each, where torch's own divides them all each time."""
    found = []
    for kind in BOTH:
        ddp = kind(Words(add=True))
        ddp(torch.randperm(6, generator=torch.Generator().manual_seed(rank))[:4]).square().sum().backward()
        found.append([p.grad.to_dense() for p in ddp.parameters()])
    parts = zip(*(local(r, torch.float32, add=True) for r in range(2)), strict=True)
    expected = [(a + b) / 2 for a, b in parts]
    same(found[0], expected)
    assert not all(torch.equal(theirs, other) for theirs, other in zip(found[1], expected, strict=True))


def uneven(kind: Any, rank: int, longest: int, hook: Any, options: dict[str, Any]) -> list[Tensor]:
    """Return parameters and gradients after training on more inputs on rank `longest` than on the other."""
    ddp = kind(Words(), **options)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with ddp.join():
        for step in range(7 if rank == longest else 3):
            optimizer.zero_grad()
            indices = torch.randint(0, 10, (5,), generator=torch.Generator().manual_seed(10 * step + rank))
            ddp(indices).square().sum().backward()
            optimizer.step()
    return [*(p.detach() for p in ddp.parameters()), *(p.grad.to_dense() for p in ddp.parameters())]


@ranks.on(2)
def test_ranks_without_input_send_their_part_of_sparse_buckets(rank: int) -> None:
    groups = round_robin(2)
    for longest in (0, 1):
        for hook in (None, averaged):
            for options in ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0}):
                ours, theirs = (uneven(kind, rank, longest, hook, options) for kind in BOTH)
                same(ours, theirs)
                same(uneven(DistributedDataParallel, rank, longest, hook, {**options, "process_group": groups}), theirs)


class Dense(nn.Module):
    """Says that its gradient is sparse, and has a dense one; or the other way round."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 2, sparse=sparse)

    def forward(self, indices: Tensor) -> Tensor:
        return nn.functional.embedding(indices, self.words.weight, sparse=not self.words.sparse)


@ranks.on(1)
def test_a_gradient_of_another_layout_is_named(rank: int) -> None:
    for sparse, words in ((True, "has a dense gradient, a sparse one was"), (False, "has a .* gradient, a dense one")):
        ddp = DistributedDataParallel(Dense(sparse))
        with pytest.raises(ExecutionError, match=rf"parameter 0 \(words\.weight\) of rank 0 {words}"):
            ddp(torch.arange(3)).sum().backward()
