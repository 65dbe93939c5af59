"""Simulator and executor launch the same buckets for the same arrivals: rebuilt by policy, or with layers left out."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from ddpexec.ddp.drop import LayerDrop
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.bucketing import BucketCaps, Parameter
from ddpsim.bucketing.drop import aligned_plan
from ddpsim.simulation.jobs import representatives
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import SimulatedIterations
from ddpsim.topology.spec import load_topology
from ddpsim.workload import Phase
from ddpsim.workload.iteration_profile import paces
from tests.ddpexec.ddp.test_order import CAP, Branches
from tests.ddpexec.groups import ranks
from tests.ddpexec.small import small_workload
from tests.ddpsim.simulation.builders import every_rank

COUNT, ITERATIONS = 7, 9
CAPS = BucketCaps(bucket_cap_mb=CAP)
RANKS = 2


def workload_of(orders):
    """Return recorded iterations whose gradients arrive as a backward through layers in `orders` brings them."""
    times = np.full((len(orders), COUNT), np.nan)
    for iteration, order in enumerate(orders):
        for place, index in enumerate(reversed(order)):
            times[iteration, index] = (place + 1) * 1e-3
    phase = Phase(np.full(len(orders), 1e-3), np.full(len(orders), 1e-3))
    parameters = tuple(Parameter(f"layers.{i}.weight", (6, 6)) for i in range(COUNT))
    return replace(
        small_workload(), estimated=False, parameters=parameters, buffers=(), forward=phase, backward=phase,
        optimizer=phase, gradient_hook_s=times, gradient_ready_s=times,
    )  # fmt: skip


def simulated(monkeypatch, orders_by_rank, **options):
    """Return the iterations of each rank, simulated."""
    recorded = [paces(workload_of(orders)) for orders in orders_by_rank]
    monkeypatch.setattr(representatives, "draw_own", lambda kind, seed, total: recorded[kind.first].__getitem__)
    placement = load_topology("loopback").place(1, len(orders_by_rank))
    given, extent = Options(backend="gloo", **options), SimulatedIterations(0, ITERATIONS, ITERATIONS)
    trace = every_rank(workload_of(orders_by_rank[0]), placement, given, extent)
    return [trace.of_rank(rank) for rank in trace.ranks]


def launched(iterations):
    """Return by iteration the (index, parameters) of the buckets in launch order."""
    return [[(bucket.index, bucket.parameters) for bucket in it.buckets] for it in iterations]


def executed(rank, ddp, orders):
    found = []
    for order in orders:
        ddp(torch.ones(2, 6), order).square().sum().backward()
        groups = [bucket.indices for bucket in ddp.reducer.buckets]
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
            options = {"bucket_cap_mb": CAP, "find_unused_parameters": find_unused, "rebuild": policy["order"]}
            options |= {name: policy[name] for name in ("predictor", "consensus")}
            ddp = DistributedDataParallel(Branches(COUNT), **options)
            found.append(executed(rank, ddp, orders_of(seed, find_unused)[rank]))
    return found


def test_a_predicted_order_launches_what_the_executor_launches(monkeypatch):
    answers = iter(zip(*ranks.run(RANKS, by_policy, timeout_s=100), strict=True))
    rebuilt = 0
    for seed, policy in enumerate(POLICIES):
        for find_unused in (False, True):
            orders = orders_of(seed, find_unused)
            traced = simulated(monkeypatch, orders, caps=CAPS, find_unused_parameters=find_unused, **policy)
            ours = list(map(launched, traced))
            assert ours == list(next(answers)), (policy, find_unused)
            rebuilt += sum(a != b for a, b in itertools.pairwise(ours[0]))
    assert rebuilt > 30


DROP = {f"layers.{i}": 0.5 for i in (1, 2, 4, 5)}
SEED = 3
ALL = [[list(range(COUNT))] * ITERATIONS] * RANKS


def aligned():
    """Return a plan in which every layer can be skipped."""
    parameters = workload_of([range(COUNT)]).parameters
    layers = Options(drop=DROP).drop_plan(parameters).layers
    return aligned_plan(parameters, layers, [1 << 20], range(COUNT - 1, -1, -1))


def searched_orders():
    """Return by rank and iteration the layers that are called: one that always stays, and some of the others."""
    rng = random.Random(11)
    some = [[rng.sample(range(1, COUNT), rng.randint(1, COUNT - 1)) for _ in range(ITERATIONS)] for _ in range(RANKS)]
    return [[[0, *order] for order in orders] for orders in some]


def dropping(rank, orders, options):
    model = Branches(COUNT)
    return executed(
        rank, DistributedDataParallel(model, drop=LayerDrop(model, DROP, seed=SEED), **options), orders[rank]
    )


@pytest.mark.parametrize(
    ("how", "search"),
    [("torch's", False), ("aligned", False), ("remapped", False), ("torch's", True), ("aligned", True)],
)
def test_layers_left_out_skip_the_buckets_that_the_executor_skips(monkeypatch, how, search):
    """Under the search for unused layers, which differ by rank, only what all ranks leave out is skipped."""
    orders = searched_orders() if search else ALL
    asked = {"plan": aligned()} if how == "aligned" else {"caps": CAPS}
    options = {"plan": aligned()} if how == "aligned" else {"bucket_cap_mb": CAP, "rebuild": "never"}
    if how == "remapped":
        asked["drop_buckets"], options["remap_dropped"] = "remapped", True
    answers = ranks.run(RANKS, dropping, orders, {**options, "find_unused_parameters": search})
    asked |= {"order": "never", "find_unused_parameters": search}
    traced = simulated(monkeypatch, orders, drop=DROP, seed=SEED, **asked)
    drop = Options(drop=DROP, seed=SEED).drop_plan(workload_of(ALL[0]).parameters)
    for iterations, answer, called in zip(traced, answers, orders, strict=True):
        found = launched(iterations)
        if how == "remapped":  # what is left has other numbers
            found, answer = ([[bucket[1] for bucket in row] for row in rows] for rows in (found, answer))
        assert found == answer
        for number, (it, order) in enumerate(zip(iterations, called, strict=True), start=1):
            assert {g.parameter for g in it.gradients} == set(order) - drop.parameters_dropped(number)
    dropped = sum(len(drop.layers_dropped(number)) for number in range(1, ITERATIONS + 1))
    assert dropped > 5
    if how == "aligned":
        assert sum(map(len, answers[0])) == ITERATIONS * len(asked["plan"].buckets) - dropped
