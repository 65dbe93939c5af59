"""Simulator and executor launch the same buckets for the same arrivals: rebuilt by policy, or with layers left out."""

from __future__ import annotations

import itertools
import random

import numpy as np
import torch
from torch import nn

from ddpexec.ddp.drop import LayerDrop
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.bucketing import BucketCaps, Parameter
from ddpsim.bucketing.drop import aligned_plan
from ddpsim.jobs import representatives
from ddpsim.simulation import Options, simulate
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Phase, Workload
from ddpsim.workload.iteration_profile import paces
from tests.ddpexec.groups import ranks

COUNT, ITERATIONS = 7, 9
CAP = 0.00025
RANKS = 2


class Branches(nn.Module):
    """Applies the layers that the caller names, in that order."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(COUNT)])

    def forward(self, value, order):
        for index in order:
            value = value + torch.tanh(self.layers[index](value))
        return value


def workload_of(orders):
    """Return recorded iterations whose gradients arrive as a backward through layers in `orders` brings them."""
    times = np.full((len(orders), COUNT), np.nan)
    for iteration, order in enumerate(orders):
        for place, index in enumerate(reversed(order)):
            times[iteration, index] = (place + 1) * 1e-3
    phase = Phase(np.full(len(orders), 1e-3), np.full(len(orders), 1e-3))
    return Workload(
        name="branches", device="cpu", precision="fp32", batch_size=1, threads=1, estimated=False,
        parameters=tuple(Parameter(f"layers.{i}.weight", (6, 6)) for i in range(COUNT)), buffers=(),
        forward=phase, backward=phase, optimizer=phase, gradient_hook_s=times, gradient_ready_s=times,
    )  # fmt: skip


def simulated(monkeypatch, orders_by_rank, **options):
    """Return, by rank and iteration, the (index, parameters) of the buckets in launch order."""
    recorded = [paces(workload_of(orders)) for orders in orders_by_rank]
    monkeypatch.setattr(representatives, "draw_own", lambda kind, seed, total: recorded[kind.first].__getitem__)
    placement = load_topology("loopback").place(1, len(orders_by_rank))
    given = Options(backend="gloo", caps=BucketCaps(bucket_cap_mb=CAP), iterations=ITERATIONS, **options)
    trace = simulate(workload_of(orders_by_rank[0]), placement, given, every_rank=True, warm_up=0)
    return [
        [[(bucket.index, bucket.parameters) for bucket in it.buckets] for it in trace.of_rank(rank)]
        for rank in trace.ranks
    ]


def executed(rank, ddp, orders):
    found = []
    for order in orders:
        ddp(torch.ones(2, 6), order).square().sum().backward()
        groups = ddp.reducer.plan.groups()
        found.append([(number, tuple(groups[number])) for number in ddp.reducer.launch_order])
        ddp.zero_grad()
    return found


POLICIES = [
    {"order": order, "predictor": predictor, "consensus": consensus}
    for order, predictor, consensus in itertools.product(
        ("never", "once", "drift:0.9:2"), ("last", "mean", "branch"), ("rank0", "mean", "slowest")
    )
]


def orders_of(seed, find_unused):
    rng = random.Random(seed)

    def one():
        return rng.sample(range(COUNT), rng.randint(1, COUNT) if find_unused else COUNT)

    return [[one() for _ in range(ITERATIONS)] for _ in range(RANKS)]


def by_policy(rank):
    found = []
    for seed, policy in enumerate(POLICIES):
        for find_unused in (False, True):
            names = {"rebuild": policy["order"], "predictor": policy["predictor"], "consensus": policy["consensus"]}
            ddp = DistributedDataParallel(Branches(), bucket_cap_mb=CAP, find_unused_parameters=find_unused, **names)
            found.append(executed(rank, ddp, orders_of(seed, find_unused)[rank]))
    return found


def test_a_predicted_order_launches_what_the_executor_launches(monkeypatch):
    answers = iter(zip(*ranks.run(RANKS, by_policy, timeout_s=100), strict=True))
    rebuilt = 0
    for seed, policy in enumerate(POLICIES):
        for find_unused in (False, True):
            orders = orders_of(seed, find_unused)
            ours = simulated(monkeypatch, orders, find_unused_parameters=find_unused, **policy)
            theirs = list(next(answers))
            assert ours == theirs, (policy, find_unused)
            rebuilt += sum(a != b for a, b in itertools.pairwise(ours[0]))
    assert rebuilt > 30


DROP = {f"layers.{i}": 0.5 for i in (1, 2, 4, 5)}
SEED = 3


class Stack(nn.Module):
    """Residual layers; what is left out passes its input on."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6, bias=False) for _ in range(COUNT)])

    def forward(self, value, order):
        for layer in self.layers:
            value = layer(value)
        return value


def plans():
    """Return torch's own buckets, and one in which every layer can be skipped."""
    parameters = workload_of([range(COUNT)]).parameters
    layers = Options(drop=DROP).drop_plan(parameters).layers
    return [None, aligned_plan(parameters, layers, [1 << 20], range(COUNT - 1, -1, -1))]


def with_drop(rank):
    found = []
    for plan in plans():
        model = Stack()
        caps = {"bucket_cap_mb": CAP, "rebuild": "never"} if plan is None else {"plan": plan}
        ddp = DistributedDataParallel(model, drop=LayerDrop(model, DROP, seed=SEED), **caps)
        found.append(executed(rank, ddp, [range(COUNT)] * ITERATIONS))
    return found


def test_layers_left_out_skip_the_buckets_that_the_executor_skips(monkeypatch):
    answers = ranks.run(RANKS, with_drop)
    orders = [[range(COUNT)] * ITERATIONS] * RANKS
    drop = Options(drop=DROP, seed=SEED).drop_plan(workload_of(orders[0]).parameters)
    for number, plan in enumerate(plans()):
        caps = BucketCaps(bucket_cap_mb=CAP) if plan is None else BucketCaps()
        given = Options(
            backend="gloo", caps=caps, plan=plan, order="never", iterations=ITERATIONS, drop=DROP, seed=SEED
        )
        placement = load_topology("loopback").place(1, RANKS)
        trace = simulate(workload_of(orders[0]), placement, given, every_rank=True, warm_up=0)
        for rank in range(RANKS):
            buckets = [[(b.index, b.parameters) for b in it.buckets] for it in trace.of_rank(rank)]
            assert buckets == answers[rank][number]
            for iteration, it in enumerate(trace.of_rank(rank), start=1):
                assert {g.parameter for g in it.gradients} == set(range(COUNT)) - drop.parameters_dropped(iteration)
        launched = sum(len(it.buckets) for it in trace.of_rank(0))
        dropped = sum(len(drop.layers_dropped(iteration)) for iteration in range(1, ITERATIONS + 1))
        assert dropped > 5
        if plan is not None:
            assert launched == ITERATIONS * len(plan.buckets) - dropped


def remapping(rank):
    model = Stack()
    drop = LayerDrop(model, DROP, seed=SEED)
    ddp = DistributedDataParallel(model, drop=drop, bucket_cap_mb=CAP, rebuild="never", remap_dropped=True)
    found = []
    for order in [range(COUNT)] * ITERATIONS:
        ddp(torch.ones(2, 6), order).square().sum().backward()
        found.append([bucket.indices for bucket in ddp.reducer.buckets])
        ddp.zero_grad()
    return found


def test_what_is_left_moves_up_as_in_the_executor():
    answers = ranks.run(RANKS, remapping)
    assert answers[0] == answers[1]
    given = Options(
        backend="gloo", caps=BucketCaps(bucket_cap_mb=CAP), order="never", iterations=ITERATIONS, drop=DROP, seed=SEED,
        drop_buckets="remapped",
    )  # fmt: skip
    placement = load_topology("loopback").place(1, RANKS)
    trace = simulate(workload_of([range(COUNT)] * ITERATIONS), placement, given, warm_up=0)
    assert [[bucket.parameters for bucket in it.buckets] for it in trace.of_rank(0)] == answers[0]


def dropped_and_searched(rank):
    """Layers are left out everywhere, others go unused on one rank or the other, and ranks search for these."""
    found = []
    for plan in plans():
        model = Branches()
        caps = {"bucket_cap_mb": CAP} if plan is None else {"plan": plan}
        drop = LayerDrop(model, DROP, seed=SEED)
        ddp = DistributedDataParallel(model, drop=drop, find_unused_parameters=True, **caps)
        found.append(executed(rank, ddp, searched_orders()[rank]))
    return found


def searched_orders():
    """Return by rank and iteration the layers that are called: one that always stays, and some of the others."""
    rng = random.Random(11)
    some = [[rng.sample(range(1, COUNT), rng.randint(1, COUNT - 1)) for _ in range(ITERATIONS)] for _ in range(RANKS)]
    return [[[0, *order] for order in orders] for orders in some]


def test_under_the_search_only_what_all_ranks_leave_out_is_skipped(monkeypatch):
    answers = ranks.run(RANKS, dropped_and_searched)
    recorded = [paces(workload_of(orders)) for orders in searched_orders()]
    monkeypatch.setattr(representatives, "draw_own", lambda kind, seed, total: recorded[kind.first].__getitem__)
    for number, plan in enumerate(plans()):
        caps = BucketCaps(bucket_cap_mb=CAP) if plan is None else BucketCaps()
        given = Options(
            backend="gloo", caps=caps, plan=plan, iterations=ITERATIONS, drop=DROP, seed=SEED,
            find_unused_parameters=True,
        )  # fmt: skip
        placement = load_topology("loopback").place(1, RANKS)
        trace = simulate(workload_of(searched_orders()[0]), placement, given, every_rank=True, warm_up=0)
        for rank in range(RANKS):
            assert [[(b.index, b.parameters) for b in it.buckets] for it in trace.of_rank(rank)] == answers[rank][
                number
            ]
        if plan is not None:
            assert min(len(it.buckets) for it in trace.of_rank(0)) < len(plan.buckets)
