"""When buckets are launched, by torch's reducer and by ours: random parameters, caps, arrival orders, unused ones."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.bucketing import BucketCaps, LaunchQueue, Parameter, initial_plan, rebuilt_plan, unused_plan


class Chain(nn.Module):
    """Gradients arrive in the reverse of `order`; parameters outside it are unused."""

    def __init__(self, sizes):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(size) / size) for size in sizes])
        self.order = list(range(len(sizes)))

    def forward(self):
        product = torch.ones(())
        for index in self.order:
            product = product * self.weights[index].sum()
        return product


def wrapped(kind, model, log, **options):
    """Return `model` under a DDP class, recording gradients and launches as they come."""

    def launched(_, bucket):
        log.append(("launch", bucket.index()))
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    for index, weight in enumerate(model.weights):
        weight.register_post_accumulate_grad_hook(lambda _, index=index: log.append(("gradient", index)))
    ddp = kind(model, **options)
    ddp.register_comm_hook(None, launched)
    return ddp


def our_events(plan, arrivals, unused):
    """Work out the same events with a LaunchQueue."""
    queue, log = LaunchQueue(plan.groups()), []
    for place, index in enumerate(arrivals):
        log.append(("gradient", index))
        early = queue.start(unused) if place == 0 else []
        log += [("launch", number) for number in early + queue.mark_ready(index)]
    return log


@pytest.mark.parametrize("kind", [nn.parallel.DistributedDataParallel, DistributedDataParallel], ids=["torch", "ours"])
@pytest.mark.parametrize("find_unused", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_buckets_are_launched_when_the_queue_says(one_rank, seed, find_unused, kind):
    rng = random.Random(seed)
    sizes = [rng.randint(1, 300) for _ in range(rng.randint(1, 20))]
    parameters = [Parameter(f"p{i}", (size,)) for i, size in enumerate(sizes)]
    caps = BucketCaps(bucket_cap_mb=rng.choice([0, 400, 1000, 4000]) / (1 << 20))
    model, log = Chain(sizes), []
    ddp = wrapped(kind, model, log, find_unused_parameters=find_unused, **caps.torch_arguments())
    first_order = None
    for iteration in range(4):
        used = rng.sample(range(len(sizes)), rng.randint(1, len(sizes)) if find_unused else len(sizes))
        model.order = used
        log.clear()
        ddp().backward()
        arrivals = [index for kind, index in log if kind == "gradient"]
        assert arrivals == used[::-1]
        if find_unused:
            plan = unused_plan(parameters, caps)
        else:
            plan = initial_plan(parameters, caps) if iteration == 0 else rebuilt_plan(parameters, caps, first_order)
        first_order = first_order or arrivals
        assert log == our_events(plan, arrivals, sorted(set(range(len(sizes))) - set(used)))
