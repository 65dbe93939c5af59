"""A small model, its batches, and the weights of one process that trains on all ranks' batches joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpsim.bucketing import BucketCaps
from tests.profile import training_steps

STEPS, BATCH = training_steps(20), 4
CAPS = BucketCaps(bucket_cap_mb=0.002, first_bucket_mb=0.0005)
SCHEMES = ["naive", "flat", "ddp", "priority", "priority:256B", "dear", "zero1", "zero2"]
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1),
}


def model_of(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 33), nn.Tanh(), nn.Sequential(nn.Linear(33, 17), nn.Tanh()), nn.LayerNorm(17), nn.Linear(17, 3)
    ).double()


def batch(step: int, world: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(world * BATCH, 6, dtype=torch.float64, generator=generator)
    return inputs, torch.randn(world * BATCH, 3, dtype=torch.float64, generator=generator)


def mine(step: int, rank: int, workers: int = 0) -> tuple[Any, Any]:
    """Return this rank's part of a batch that so many ranks share, all where it is not said."""
    inputs, targets = batch(step, workers or torch.distributed.get_world_size())
    part = slice(rank * BATCH, (rank + 1) * BATCH)
    return inputs[part], targets[part]


def loss_of(model: Any, inputs: Any, targets: Any) -> Any:
    return nn.functional.mse_loss(model(inputs), targets)


def alone(optimizer: str, world: int, clip: float | None = None, every: int = 1) -> list[list[Any]]:
    """Return the weights after each step of one process that trains on the joined batches."""
    model, found = model_of(), []
    updating = OPTIMIZERS[optimizer](model.parameters())
    for step in range(STEPS):
        for micro in range(every):
            loss_of(model, *batch(step * every + micro, world)).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        updating.step()
        updating.zero_grad()
        found.append([parameter.detach().clone() for parameter in model.parameters()])
    return found


def wrapped(rank: int, scheme: Any, optimizer: str = "sgd", **options: Any) -> ScheduledDataParallel:
    return ScheduledDataParallel(model_of(3 + rank), scheme, OPTIMIZERS[optimizer], **{"caps": CAPS, **options})


def take_step(made: Any, number: int, rank: int, workers: int = 0, clip: float | None = None) -> None:
    loss_of(made, *mine(number, rank, workers)).backward()
    if clip is not None:
        made.clip_grad_norm_(clip)
    made.optimizer.step()
    made.optimizer.zero_grad()


def weights_of(module: nn.Module) -> list[Any]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def train(made: Any, rank: int, first: int = 0, steps: int = STEPS, **how: Any) -> list[Any]:
    """Train from batch `first` on; return the weights."""
    for number in range(first, first + steps):
        take_step(made, number, rank, **how)
    made.complete()
    return weights_of(made.module)


def apart(some: Any, others: Any) -> float:
    """Return the greatest distance between weights."""
    return max(float((a - b).abs().max()) for a, b in zip(some, others, strict=True))
