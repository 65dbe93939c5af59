"""Stochastic depth trains on two ranks as on one process: a character model on the text of a module of Python's own."""

from __future__ import annotations

import argparse
import inspect

import pytest
import torch
from torch import nn

from ddpexec.ddp.drop import LayerDrop
from ddpexec.ddp.wrapper import DistributedDataParallel
from tests.ddpexec.groups import ranks

SEEN, WIDTH, STEPS, BATCH, RANKS = 6, 48, 60, 64, 2
DROP = {f"blocks.{i}": 0.15 * i for i in range(1, 4)}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        return value + torch.relu(self.linear(self.norm(value)))


class Characters(nn.Module):
    """Guesses the next character from the last few."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.embed, self.enter = nn.Embedding(128, 16), nn.Linear(16 * SEEN, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.leave = nn.Linear(WIDTH, 128)

    def forward(self, characters):
        value = self.enter(self.embed(characters).flatten(1))
        for block in self.blocks:
            value = block(value)
        return self.leave(value)


def batches():
    """Yield every step's characters and what comes next, the same everywhere."""
    text = torch.tensor([min(ord(letter), 127) for letter in inspect.getsource(argparse)])
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        starts = torch.randint(len(text) - SEEN - 1, (BATCH,), generator=generator)
        window = text[starts[:, None] + torch.arange(SEEN + 1)]
        yield window[:, :SEEN], window[:, SEEN]


def train(model, module, share=slice(None), before=lambda step: None):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
    losses = []
    for step, (seen, coming) in enumerate(batches(), start=1):
        before(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(seen[share]), coming[share])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, [p.detach().clone() for p in module.parameters()]


def alone(rank):
    torch.set_num_threads(1)
    module = Characters()
    return train(module, module, before=LayerDrop(module, DROP, seed=9).start)


def on_ranks(rank, options):
    torch.set_num_threads(1)
    module = Characters()
    drop = LayerDrop(module, DROP, seed=9)
    ddp = DistributedDataParallel(module, drop=drop, bucket_cap_mb=0.01, **options)
    return train(ddp, module, slice(rank, None, RANKS))


@pytest.mark.parametrize("options", [{}, {"remap_dropped": True}])
def test_losses_and_weights_are_those_of_one_process(options):
    [(expected, weights)] = ranks.run(1, alone)
    (first, ours), (second, theirs) = ranks.run(RANKS, on_ranks, options)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    together = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
    # Means of two halves are rounded otherwise than means of the whole, and sixty steps of training carry that on.
    assert together == pytest.approx(expected, rel=1e-3)
    assert max(float((a - b).abs().max()) for a, b in zip(ours, weights, strict=True)) < 1e-3
    assert sum(expected[-10:]) < 0.75 * sum(expected[:10])
