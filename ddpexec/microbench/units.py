"""What torch's `fully_shard` takes of a host for each collective, beside waiting for it: hooks, views, copies."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from ddpexec.capturing.models.training import sgd
from ddpexec.ddp.fully_sharded import FullySharded
from ddpexec.groups.process_groups import Communicator
from ddpexec.timing.clock import HostClock
from ddpexec.timing.observe import Observer
from ddpexec.timing.stopwatch import chill, gather

BLOCKS, WIDTH = 8, 16
"""Of the model: blocks of three small layers, about what a block of ResNet-50 has in parameters; chosen by hand."""
WARM_UP, REPEATS = 3, 12
"""Steps that are discarded, and those whose median counts; chosen by hand."""


class _Blocks(nn.Module):
    """Numbered blocks, and one layer in none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3))) for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def measure_units(communicator: Communicator) -> float:
    """Return seconds a collective: a step under `fully_shard` less its collectives, over one without it.

    Of a collective counts what the rank that came last waited: what ranks wait for each other at every one of them is
    the host's time, whose chance differences add up where all wait for all.
    """
    observer = Observer(HostClock())
    sharded = FullySharded(_Blocks(), "fsdp2", sgd, process_group=communicator.main, observer=observer)
    plain, steps, without = _Blocks(), [], []
    for number in range(WARM_UP + REPEATS):
        observer.begin(number, synced=True)
        steps.append(_step_s(sharded))
        without.append(_step_s(plain))
    observer.close()
    count = len(sharded.schedule)
    waits = [end - begin for note in observer.notes for begin, end in note.waits or ()]
    last = [min(each) for each in zip(*gather(waits, communicator), strict=True)]
    sent_s = [sum(last[number * count : (number + 1) * count]) for number in range(WARM_UP + REPEATS)]
    own_s = [step - sent - plain_s for step, sent, plain_s in zip(steps, sent_s, without, strict=True)]
    taken: float = statistics.median(own_s[WARM_UP:]) / count
    return max(0.0, taken)


def _step_s(model: nn.Module) -> float:
    """Return the seconds of a forward and a backward, each with caches cold."""
    x, seconds = torch.ones(4, WIDTH), 0.0
    chill(x.device)
    begin = time.perf_counter()
    loss = model(x).sum()
    seconds += time.perf_counter() - begin
    chill(x.device)
    begin = time.perf_counter()
    loss.backward()
    seconds += time.perf_counter() - begin
    model.zero_grad(set_to_none=True)
    return seconds
