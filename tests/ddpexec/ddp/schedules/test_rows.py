"""Parallax carried out: weights of one process with sparse embeddings, untouched rows, and what is refused."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.errors import ExecutionError, LostRankError, OptionError
from ddpsim.common.errors import PlanError
from tests.ddpexec.ddp.schedules.training import CAPS, apart
from tests.ddpexec.groups import ranks
from tests.profile import training_steps

STEPS, BATCH, WORDS = training_steps(20), 4, 11
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
}


class Words(nn.Module):
    """Two embeddings with sparse gradients, one of which only odd steps use, before dense layers."""

    def __init__(self, seed: int, sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(WORDS, 6, sparse=sparse)
        self.dense = nn.Linear(6, 33)
        self.rare = nn.Embedding(7, 33, sparse=sparse)
        self.last = nn.Linear(33, 3)

    def forward(self, words: Any, rare: Any) -> Any:
        hidden = torch.tanh(self.dense(self.words(words)))
        return self.last(hidden if rare is None else hidden + self.rare(rare))


def batch(step: int, workers: int) -> tuple[Any, Any, Any]:
    draw = torch.Generator().manual_seed(step)
    words, rare = (torch.randint(rows, (workers * BATCH,), generator=draw) for rows in (WORDS - 1, 7))
    return words, rare if step % 2 else None, torch.randn(workers * BATCH, 3, dtype=torch.float64, generator=draw)


def loss_of(model: Any, words: Any, rare: Any, targets: Any) -> Any:
    return nn.functional.mse_loss(model(words, rare), targets)


def alone(optimizer: str, workers: int, every: int) -> list[Any]:
    model = Words(3).double()
    updating = OPTIMIZERS[optimizer](model.parameters())
    for step in range(STEPS):
        for micro in range(every):
            loss_of(model, *batch(step * every + micro, workers)).backward()
        updating.step()
        updating.zero_grad()
    return [parameter.detach().clone() for parameter in model.parameters()]


def wrapped(rank: int, scheme: str, optimizer: str = "sgd", **options: Any) -> ScheduledDataParallel:
    return ScheduledDataParallel(Words(3 + rank).double(), scheme, OPTIMIZERS[optimizer], caps=CAPS, **options)


def step(made: Any, number: int, rank: int, workers: int) -> None:
    words, rare, targets = batch(number, workers)
    mine = slice(rank * BATCH, (rank + 1) * BATCH)
    loss_of(made, words[mine], None if rare is None else rare[mine], targets[mine]).backward()


def trained(rank: int, servers: int, optimizer: str, every: int = 1) -> Any:
    """Return the weights of a training rank; None of a server, and the parameters' rows that it has."""
    workers = torch.distributed.get_world_size() - servers
    made = wrapped(rank, f"parallax:servers={servers}", optimizer, every=every)
    before = made.module.words.weight.detach().clone()
    if made.serves:
        served = made.serve()
        assert served.updates == STEPS * 2
        return None
    for number in range(STEPS):
        for micro in range(every):
            step(made, number * every + micro, rank, workers)
        made.optimizer.step()
        made.optimizer.zero_grad()
    made.end()
    # No batch has the last word.
    assert torch.equal(made.module.words.weight[-1], before[-1])
    return [parameter.detach().clone() for parameter in made.module.parameters()]


@pytest.mark.parametrize(("world", "servers"), [(4, 2), (2, 1)])
@ranks.on("world", timeout_s=110)
def test_steps_end_with_the_weights_of_one_process(rank: int, servers: int) -> None:
    workers, found = torch.distributed.get_world_size() - servers, {}
    for optimizer, every in (("sgd", 1), ("adagrad", 2)):
        weights = trained(rank, servers, optimizer, every)
        found[optimizer] = 0.0 if weights is None else apart(weights, alone(optimizer, workers, every))
    assert len(found) == len(OPTIMIZERS)
    assert {name: far for name, far in found.items() if far > 1e-10} == {}


def losing(rank: int) -> str:
    made = wrapped(rank, "parallax")
    try:
        if made.serves:
            made.serve()
        for number in range(50):
            if rank == 1 and number == 7:
                os._exit(17)
            step(made, number, rank, 2)
            made.optimizer.step()
            made.optimizer.zero_grad()
    except ExecutionError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_a_killed_rank_ends_the_others() -> None:
    survivors = ranks.outcomes(3, losing, group_timeout_s=3)
    for rank in (0, 2):
        assert survivors[rank].value.startswith(LostRankError.__name__), survivors[rank]


@ranks.on(2)
def test_what_cannot_be_is_refused_on_every_rank(rank: int) -> None:
    dense = lambda: ScheduledDataParallel(Words(3, sparse=False), "parallax:sparse=words", OPTIMIZERS["sgd"])  # noqa: E731
    momentum = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    adam = lambda parameters: torch.optim.Adam(parameters)  # noqa: E731
    of = lambda model, optimizer: ScheduledDataParallel(model, "parallax", optimizer)  # noqa: E731
    refused: list[tuple[type[Exception], str, Any]] = [
        (OptionError, "is dense", dense),
        (PlanError, "no parameter has a sparse", lambda: of(nn.Linear(2, 2), OPTIMIZERS["sgd"])),
        (OptionError, "no batch touched", lambda: of(Words(3), momentum)),
        (OptionError, "no sparse gradient", lambda: of(Words(3), adam)),
        (PlanError, "clients", lambda: wrapped(rank, "parallax:servers=2")),
        (OptionError, "is sparse", lambda: wrapped(rank, "dear")),
    ]
    for kind, said, make in refused:
        with pytest.raises(kind, match=said):
            make()
