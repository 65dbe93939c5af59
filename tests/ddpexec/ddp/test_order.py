"""Rebuilding by policy in the executor: on drift, under find_unused_parameters, by rank 0 or the mean of all ranks."""

from __future__ import annotations

import torch
from torch import nn

from ddpexec.ddp.compression import hook_for
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.bucketing import BucketCaps, Parameter, initial_plan, rebuilt_plan
from ddpsim.bucketing.order.predictors import ExponentialMean
from ddpsim.bucketing.order.rebuild import Once, OnDrift
from tests.ddpexec.groups import ranks

STOCK = nn.parallel.DistributedDataParallel
CAP = 0.00025  # two of the layers below a bucket


class Branches(nn.Module):
    """Applies the layers that the caller names, in that order; the others go unused."""

    def __init__(self, count=8):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(count)])

    def forward(self, value, order):
        for index in order:
            value = torch.tanh(self.layers[index](value))
        return value


def gradients(ddp, orders, rank):
    """Train; return the gradients of every iteration, None kept, and the plan's groups in each."""
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    taken, groups = [], []
    for iteration, order in enumerate(orders):
        value = torch.randn(3, 6, generator=torch.Generator().manual_seed(100 * rank + iteration))
        ddp(value, order).square().sum().backward()
        taken.append([None if p.grad is None else p.grad.clone() for p in ddp.parameters()])
        if isinstance(ddp, DistributedDataParallel):
            groups.append(ddp.reducer.plan.groups())
        optimizer.step()
        optimizer.zero_grad()
    return taken, groups


def both(rank, orders_by_rank, policy, options):
    """Train ours and stock torch; return the largest difference of their gradients and our plans."""
    ours = DistributedDataParallel(Branches(), bucket_cap_mb=CAP, **policy, **options)
    theirs = STOCK(Branches(), bucket_cap_mb=CAP, **options)
    mine, groups = gradients(ours, orders_by_rank[rank], rank)
    stock, _ = gradients(theirs, orders_by_rank[rank], rank)
    return max(difference(x, y) for x, y in zip(mine, stock, strict=True)), groups


def difference(mine, stock):
    assert [g is None for g in mine] == [g is None for g in stock]
    return max((a - b).abs().max().item() for a, b in zip(mine, stock, strict=True) if a is not None)


FORWARDS, BACKWARDS = list(range(8)), list(range(7, -1, -1))


@ranks.on(2)
def test_buckets_follow_an_order_that_drifts(rank):
    orders = [FORWARDS] * 5 + [BACKWARDS] * 5
    caps = BucketCaps(bucket_cap_mb=CAP)
    for options in ({}, {"gradient_as_bucket_view": True}):
        policy = {"rebuild": OnDrift(every=2), "predictor": ExponentialMean(0.7)}
        error, groups = both(rank, [orders] * 2, policy, options)
        assert error == 0
        assert groups[0] == initial_plan(list_parameters(), caps).groups()
        assert groups[1:6] == [rebuilt_plan(list_parameters(), caps, BACKWARDS).groups()] * 5
        assert groups[8:] == [rebuilt_plan(list_parameters(), caps, FORWARDS).groups()] * 2


def list_parameters():
    return [Parameter(name, tuple(p.shape)) for name, p in Branches().named_parameters()]


@ranks.on(2)
def test_unused_parameters_are_set_apart_under_find_unused_parameters(rank):
    """Ranks use different layers, two of them no rank: the rebuild puts these two into a bucket of their own."""
    orders = [[[7, 5, 3, 1]] * 4, [[7, 5, 2, 1]] * 4]
    error, groups = both(rank, orders, {"rebuild": Once(2), "consensus": "mean"}, {"find_unused_parameters": True})
    assert error == 0
    assert groups[0] == [(6, 7), (4, 5), (2, 3), (0, 1)]
    assert groups[2] == groups[3] == [(0, 4), (6, 1), (3, 2), (5, 7)]


def test_what_is_used_may_change_at_every_iteration_and_rank():
    generator = torch.Generator().manual_seed(5)

    def some():
        order = torch.randperm(8, generator=generator).tolist()
        return order[: int(torch.randint(1, 9, (), generator=generator))]

    orders = [[some() for _ in range(12)] for _ in range(2)]
    policy = {"rebuild": OnDrift(tau=1.0, every=2), "predictor": "mean", "consensus": "slowest"}
    answers = ranks.run(2, both, orders, policy, {"find_unused_parameters": True})
    assert [error for error, _ in answers] == [0] * len(answers)
    assert answers[0][1] == answers[1][1]
    assert len({str(groups) for groups in answers[0][1]}) > 2


@ranks.on(3)
def test_rank_0_or_the_majority_decides_for_all(rank):
    """Arrival is the reverse of use: rank 0 uses layers backwards, the two others forwards."""
    orders = [[BACKWARDS if r == 0 else FORWARDS] * 2 for r in range(3)]
    for how, winner in (("rank0", FORWARDS), ("mean", BACKWARDS)):
        error, groups = both(rank, orders, {"consensus": how}, {})
        assert groups[1] == rebuilt_plan(list_parameters(), BucketCaps(bucket_cap_mb=CAP), winner).groups()
        assert error < 1e-6  # three addends are summed in an order that depends on their place in the buffer


@ranks.on(2)
def test_compression_hooks_do_the_same_under_ours_and_under_torchs(rank):
    errors = {}
    for name in ("fp16", "onebit", "topk:0.1", "powersgd:1"):
        results = []
        for kind in (DistributedDataParallel, STOCK):
            ddp = kind(Branches(), bucket_cap_mb=CAP)
            ddp.register_comm_hook(*hook_for(name))
            results.append(gradients(ddp, [FORWARDS] * 4, rank)[0])
        errors[name] = max(difference(x, y) for x, y in zip(*results, strict=True))
    assert errors == dict.fromkeys(("fp16", "onebit", "topk:0.1", "powersgd:1"), 0)
