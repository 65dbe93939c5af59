"""200 random models and options: gradients equal torch DDP's bit for bit, launches in the order that is simulated."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from ddpexec.ddp import buckets, flat
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.bucketing.drop import skipped_buckets
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.graph import Placement
from ddpsim.topology.spec import load_topology
from tests.ddpexec.ddp.random_models import DTYPES, WIDTH, loss_of, random_case
from tests.ddpexec.groups import ranks
from tests.ddpexec.small import small_workload
from tests.profile import examples

STOCK = nn.parallel.DistributedDataParallel
STEPS = 4


@functools.cache
def two_here() -> Placement:
    return load_topology("loopback").place(1, 2)


def simulated_order(ddp: DistributedDataParallel) -> list[int]:
    """Return the buckets that the simulation launches, in order, where gradients arrive as in the last backward."""
    reducer = ddp.reducer
    parameters = reducer.model.policy
    arrives_s = np.full((1, len(parameters)), np.nan)
    arrives_s[0, reducer.arrival] = 1e-3 * (1 + np.arange(len(reducer.arrival)))
    source = replace(small_workload(step_s=1.0), buffers=())
    workload = replace(source, parameters=parameters, gradient_hook_s=arrives_s, gradient_ready_s=arrives_s)
    options = Options(backend="gloo", plan=reducer.plan, find_unused_parameters=True, fidelity="closed", iterations=1)
    iteration = simulate(workload, two_here(), options).iterations[0]
    return [bucket.index for bucket in sorted(iteration.buckets, key=lambda bucket: bucket.launched_s)]


def one_case(rank: int, seed: int) -> None:
    base, options, how = random_case(seed)
    nets = [copy.deepcopy(base) for _ in range(2)]
    kinds = (DistributedDataParallel, STOCK)
    ddps: list[Any] = [kind(net, **options) for kind, net in zip(kinds, nets, strict=True)]
    orders: dict[Any, list[int]] = {}
    for step in range(STEPS):
        picked = 100 * seed + step + (rank if how["by_rank"] else 0)
        picked = seed if options.get("static_graph") else picked
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1000 * seed + 10 * step + rank))
        local = how["accumulate"] and step % 2 == 0 and not options.get("static_graph")
        for ddp in ddps:
            if step % 2 == 0 or "skip_all_reduce_unused_params" in options:
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
        if not local and ddps[0].reducer.arrival:
            reducer = ddps[0].reducer
            what = tuple(reducer.arrival), tuple(map(tuple, reducer.plan.groups()))
            if what not in orders:
                orders[what] = simulated_order(ddps[0])
            unused = set(range(len(reducer.model.policy))) - set(reducer.arrival)
            skipping = options.get("skip_all_reduce_unused_params")
            skipped = skipped_buckets(reducer.plan.groups(), unused) if skipping else ()
            assert reducer.launch_order == [number for number in orders[what] if number not in skipped], (seed, step)


def cases(rank: int, first: int, count: int) -> None:
    for seed in range(first, first + count):
        try:
            eager = 90 if seed % 2 else flat.EAGER_BYTES
            together = 400 if seed % 3 else buckets.TOGETHER_BYTES
            with (
                mock.patch.object(flat, "EAGER_BYTES", eager),
                mock.patch.object(buckets, "TOGETHER_BYTES", together),
            ):
                one_case(rank, seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {random_case(seed)[1:]}: {error}") from error


SHARES = [(2, 0, 65), (2, 65, 65), (3, 130, 35), (3, 165, 35)]
"""Ranks, first seed, number of seeds: 200 models, of which the small profile tries the first of each share."""


@pytest.mark.parametrize(("world_size", "first", "count"), SHARES)
def test_random_models_equal_torch_bit_for_bit(world_size: int, first: int, count: int) -> None:
    ranks.run(world_size, cases, first, examples(count), timeout_s=110)


def test_there_are_200_models_with_everything_in_many_of_them() -> None:
    found: Counter[str] = Counter()
    seeds = [seed for _, first, count in SHARES for seed in range(first, first + count)]
    for seed in seeds:
        model, options, how = random_case(seed)
        found.update(model.features)
        found.update(f"{name}={value}" for name, value in options.items() if isinstance(value, bool))
        found.update(name for name in options if "cap" in name)
        found.update(name for name, value in how.items() if value)
    assert len(set(seeds)) == 200
    wanted = (
        "shared", "unused", "frozen", "nested", "sparse", "strided", "applied twice", "several dtypes",
        *map(str, DTYPES), "bucket_cap_mb", "bucket_cap_mb_list", "gradient_as_bucket_view=True", "static_graph=True",
        "find_unused_parameters=True", "batched_grad_copy=True", "skip_all_reduce_unused_params=True",
        "forward_sync_buffers=False", "set_to_none", "accumulate", "by_rank",
    )  # fmt: skip
    assert {name: found[name] for name in wanted if found[name] < 15} == {}


@ranks.on(2)
def test_a_skipped_gradient_is_kept_where_torch_divides_it_by_the_world_size(rank: int) -> None:
    """Accumulate over two synced iterations of which the second leaves the second layer unused, on every rank."""
    grads = []
    for kind, skip in ((STOCK, False), (DistributedDataParallel, True), (STOCK, True)):
        net = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))
        net.forward = lambda x, used, net=net: sum(layer(x) for layer in net[:used])
        for parameter in net.parameters():
            nn.init.ones_(parameter)
        options = {"find_unused_parameters": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0}
        ddp = kind(net, skip_all_reduce_unused_params=skip, **options)
        for used in (2, 1):
            ddp(torch.full((1, 2), 1.0 + rank), used).sum().backward()
        grads.append([parameter.grad.flatten()[0].item() for parameter in net.parameters()])
    assert grads[0] == grads[1] == [3.0, 2.0, 1.5, 1.0]
    assert grads[2] == [3.0, 2.0, 0.75, 0.5]
