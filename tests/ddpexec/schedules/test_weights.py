from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.ddpexec.groups import ranks

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from ddpexec.schedules.wrapper import ScheduledDataParallel  # noqa: E402
from ddpsim.bucketing import BucketCaps  # noqa: E402

STEPS, BATCH = 20, 4
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
    shape = world * BATCH
    inputs = torch.randn(shape, 6, dtype=torch.float64, generator=generator)
    return inputs, torch.randn(shape, 3, dtype=torch.float64, generator=generator)


def alone(optimizer: str, world: int, clip: float | None) -> list[Any]:
    """Return the weights of one process that trains on the joined batch."""
    model = model_of()
    updating = OPTIMIZERS[optimizer](model.parameters())
    for step in range(STEPS):
        inputs, targets = batch(step, world)
        nn.functional.mse_loss(model(inputs), targets).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        updating.step()
        updating.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def trained(rank: int, scheme: str, optimizer: str, clip: float | None, *, overlap: bool = True) -> list[Any]:
    world = torch.distributed.get_world_size()
    made = ScheduledDataParallel(
        model_of(3 + rank),
        scheme,
        OPTIMIZERS[optimizer],
        caps=BucketCaps(bucket_cap_mb=0.002, first_bucket_mb=0.0005),
        overlap=overlap,
    )
    for step in range(STEPS):
        inputs, targets = (part[rank * BATCH : (rank + 1) * BATCH] for part in batch(step, world))
        nn.functional.mse_loss(made(inputs), targets).backward()
        if clip is not None:
            made.clip_grad_norm_(clip)
        made.optimizer.step()
        made.optimizer.zero_grad()
    return [value.clone() for value in made.module.state_dict().values()]


def distances(rank: int) -> dict[str, float]:
    """Return how far each scheme ends from one process."""
    world, found = torch.distributed.get_world_size(), {}
    for optimizer in OPTIMIZERS:
        for clip in (None, 0.1):
            expected = alone(optimizer, world, clip)
            for scheme in SCHEMES:
                mine = trained(rank, scheme, optimizer, clip)
                apart = max(float((a - b).abs().max()) for a, b in zip(mine, expected, strict=True))
                found[f"{scheme} {optimizer} {clip}"] = apart
    return found


@pytest.mark.parametrize("world", [2, 4])
def test_twenty_steps_end_with_the_weights_of_one_process(world: int) -> None:
    for found in ranks.run(world, distances, timeout_s=100):
        assert len(found) == len(SCHEMES) * len(OPTIMIZERS) * 2
        assert {name: apart for name, apart in found.items() if apart > 1e-10} == {}
