"""Which parameters and buffers are made equal, and when: ours beside torch's, ranks starting from different values."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from tests.ddpexec.groups import ranks

KINDS = (DistributedDataParallel, nn.parallel.DistributedDataParallel)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"init_sync": False},
    {"broadcast_buffers": False},
    {"broadcast_buffers": True},
    {"forward_sync_buffers": False},
    {"forward_sync_buffers": True, "broadcast_buffers": False},
    {"init_sync": False, "forward_sync_buffers": False},
    {"init_sync": False, "broadcast_buffers": False},
)


class Counting(nn.Module):
    """Starts from values of its rank and counts its forwards in a buffer, which another rank counts from elsewhere."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.register_buffer("count", torch.full((3,), float(rank)))
        self.register_buffer("other", torch.full((2,), 10.0 + rank), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1  # a buffer may be another tensor after each forward
        return self.layers(x)


def states(kind: Any, rank: int, options: dict[str, Any], accumulate: bool) -> list[Tensor]:
    """Return parameters, gradients and buffers after construction, after each forward and after backward."""
    taken: list[Tensor] = []

    def take() -> None:
        taken.extend(t.detach().clone() for t in (*ddp.parameters(), *ddp.buffers()))
        taken.extend(p.grad.clone() for p in ddp.parameters() if p.grad is not None)

    ddp = kind(Counting(rank), **options)
    take()
    for step in range(3):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        for local in (True, False) if accumulate else (False,):
            with ddp.no_sync() if local else nullcontext():
                output = ddp(x)
                take()
                output.square().sum().backward()
                take()
    with torch.no_grad():
        ddp(x)
    take()
    ddp.eval()(x)
    take()
    return taken


@ranks.on(2)
def test_parameters_and_buffers_are_synchronised_when_torch_does(rank: int) -> None:
    for options in OPTIONS:
        for accumulate in (False, True):
            ours, theirs = (states(kind, rank, options, accumulate) for kind in KINDS)
            for mine, other in zip(ours, theirs, strict=True):
                assert torch.equal(mine, other), (options, accumulate)


@ranks.on(1)
def test_the_deprecated_option_warns_as_torchs_does(rank: int) -> None:
    for options, words in (
        ({"broadcast_buffers": False}, "`broadcast_buffers` is deprecated. Use `forward_sync_buffers`"),
        ({"broadcast_buffers": True, "forward_sync_buffers": True}, "its value is ignored"),
    ):
        for kind in KINDS:
            with pytest.warns(FutureWarning, match=words):
                ddp = kind(Counting(0), **options)
            assert ddp.broadcast_buffers == ddp.forward_sync_buffers
            ddp.broadcast_buffers = True
            assert ddp.forward_sync_buffers


class Partly(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        torch.manual_seed(rank)
        self.shared, self.own = nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("kept", torch.full((2,), float(rank)))

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self.shared(x) + self.kept.sum())


@ranks.on(2)
def test_ignored_parameters_stay_local_as_torchs(rank: int) -> None:
    """Ignored parameters and buffers are neither broadcast nor reduced, and have ordinary local gradients."""
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        results = []
        for kind in KINDS:
            net = Partly(rank)
            kind._set_params_and_buffers_to_ignore_for_model(net, ["own.weight", "own.bias", "kept"])
            ddp = kind(net, **options)
            assert len(list(ddp._get_data_parallel_params(net))) == 2
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(20):
                optimizer.zero_grad()
                x = torch.randn(2, 3, generator=torch.Generator().manual_seed(10 * step + rank))
                ddp(x).square().mean().backward()
                optimizer.step()
            results.append(
                [t.detach() for t in (*net.parameters(), *net.buffers(), *(p.grad for p in net.parameters()))]
            )
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), options
        assert net.kept.tolist() == [rank, rank]
