"""Important chunks carried out: against DDP where all are sent, else against the algorithm by hand."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from ddpexec.errors import OptionError
from tests.ddpexec.ddp.schedules.training import (
    OPTIMIZERS,
    STEPS,
    alone,
    apart,
    loss_of,
    mine,
    model_of,
    train,
    wrapped,
)
from tests.ddpexec.groups import ranks

PLAIN = {"plain": lambda parameters: torch.optim.SGD(parameters, lr=0.05)}


def trained(rank: int, scheme: str, optimizer: str) -> tuple[list[Any], Any]:
    made = wrapped(rank, scheme, optimizer)
    return train(made, rank), made.schedule


def by_hand(schedule: Any, elements: int, optimizer: str, momentum: float = 0.0) -> list[Any]:
    """Return the weights of all ranks trained here, each bucket's chunks of the largest summed norms averaged."""
    world = torch.distributed.get_world_size()
    model = model_of()
    updating = OPTIMIZERS[optimizer](model.parameters())
    parameters = list(model.parameters())
    buckets = [message for message in schedule if message.id.startswith("chunks")]
    left: Any = [[0.0] * len(buckets) for _ in range(world)]
    velocity: Any = [[0.0] * len(buckets) for _ in range(world)]
    for step in range(STEPS):
        gradients = []
        for rank in range(world):
            updating.zero_grad()
            loss_of(model, *mine(step, rank)).backward()
            gradients.append([parameter.grad.clone() for parameter in parameters])
        for place, message in enumerate(buckets):
            pieces = []
            for rank in range(world):
                flat = torch.cat([gradients[rank][index].flatten() for index in message.parameters]) / world
                velocity[rank][place] = momentum * velocity[rank][place] + flat
                left[rank][place] = left[rank][place] + velocity[rank][place]
                pieces.append(list(left[rank][place].split(elements)))
            norms = [sum(float(pieces[rank][k].abs().sum()) for rank in range(world)) for k in range(len(pieces[0]))]
            chosen = set(sorted(range(len(norms)), key=lambda k: -norms[k])[: message.chunks.chosen])
            summed = [
                sum(pieces[rank][k] for rank in range(world)) if k in chosen else torch.zeros_like(pieces[0][k])
                for k in range(len(norms))
            ]
            for rank in range(world):
                kept = [torch.zeros_like(p) if k in chosen else p for k, p in enumerate(pieces[rank])]
                left[rank][place] = torch.cat(kept)
                own = velocity[rank][place].split(elements)
                velocity[rank][place] = torch.cat(
                    [torch.zeros_like(v) if k in chosen else v for k, v in enumerate(own)]
                )
            offset, whole = 0, torch.cat(summed)
            for index in message.parameters:
                count = parameters[index].numel()
                parameters[index].grad = whole[offset : offset + count].view_as(parameters[index]).clone()
                offset += count
        updating.step()
    return [parameter.detach() for parameter in parameters]


@pytest.mark.parametrize("world", [2, 3])
@ranks.on("world", timeout_s=110)
def test_chunks_and_their_corrected_momentum_are_those_of_a_hand_computation(rank: int) -> None:
    found = {}
    with mock.patch.dict(OPTIMIZERS, PLAIN):
        for optimizer, momentum, said in (("sgd", 0.0, ""), ("plain", 0.8, ",momentum=0.8")):
            weights, _ = trained(rank, f"gradientflow:density=1,chunk=7{said}", optimizer)
            found["all chunks" + said] = apart(weights, alone(optimizer, torch.distributed.get_world_size())[-1])
            for density in (0.1, 0.5):
                weights, schedule = trained(rank, f"gradientflow:density={density},chunk=16{said}", optimizer)
                found[f"density {density}{said}"] = apart(weights, by_hand(schedule, 16, optimizer, momentum))
                assert not momentum or apart(weights, by_hand(schedule, 16, optimizer)) > 1e-6
    assert {name: far for name, far in found.items() if far > 1e-10} == {}


@ranks.on(2)
def test_a_momentum_that_would_count_twice_is_refused(rank: int) -> None:
    for optimizer in OPTIMIZERS:
        with pytest.raises(OptionError, match="would count twice"):
            wrapped(rank, "gradientflow:momentum=0.9", optimizer)
