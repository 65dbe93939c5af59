"""Training under `torch.nn.DataParallel`: one process, whose first GPU keeps the model, replicas on all others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ddpexec.ddp.parameters import ModelParameters
from ddpexec.errors import OptionError
from ddpexec.groups.process_groups import Communicator
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan
from ddpsim.bucketing.plan import custom_plan
from ddpsim.schedules.named import scheme_named
from ddpsim.schedules.setup import SchemeInputs

PLACE = "scheme=dataparallel"


def gpus_of(communicator: Communicator, device: torch.device) -> int:
    """Return how many GPUs `torch.nn.DataParallel` trains on here: all that this process sees.

    Raises:
        OptionError: several processes, a rank that computes on the CPU, or fewer than two GPUs.
    """
    if communicator.world_size > 1:
        what = f"torch.nn.DataParallel is one process for all GPUs of a machine, and {communicator.world_size} started"
        raise OptionError(what, place=PLACE, remedy="start one: --nproc-per-node 1")
    gpus = torch.cuda.device_count()
    if gpus < 2:
        what = f"torch.nn.DataParallel needs several GPUs in one machine, this one has {gpus}"
        raise OptionError(what, place=PLACE, remedy="simulate it with `ddpsim predict`, or run `scheme=ddp`")
    if device.type != "cuda":
        what = f"torch.nn.DataParallel trains on GPUs, the rank is on {device}"
        raise OptionError(what, place=PLACE, remedy="give `device=cuda`")
    return gpus


class Replicated(nn.Module):
    """`torch.nn.DataParallel` with the moments of its phases.

    Its own messages cannot be seen from outside: the broadcast is a part of forward, the sum one of backward.

    Args:
        module: on the first GPU.
        model: its parameters.
        gpus: on which replicas are made.
        observer: takes the moments of each iteration; None takes none.

    Attributes:
        replicas: GPUs, each with its share of the batch.
        plan: the parameters that one message has, as torch puts them together.
    """

    def __init__(self, module: nn.Module, model: ModelParameters, gpus: int, observer: Observer | None) -> None:
        super().__init__()
        self.replicas, self.observer = gpus, observer
        # Where torch sees no GPU it calls the module itself.
        self.module: Any = nn.DataParallel(module, range(gpus) if torch.cuda.is_available() else None)
        schedule = scheme_named("dataparallel").schedule(
            SchemeInputs(parameters=model.policy, buckets=(), world_size=gpus)
        )
        summed = [message.parameters for message in schedule if message.op.reduces]
        self.plan: BucketPlan = custom_plan(model.policy, summed)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Scatter the batch, make the replicas, compute on each, and gather what they return on the first."""
        if self.observer is None:
            return self.module(*inputs, **kwargs)
        begin = self.observer.now()
        output = self.module(*inputs, **kwargs)
        self.observer.module(begin)
        return output

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Change nothing: each backward sums the replicas' gradients."""
        yield
