"""Models in which the order of gradients changes from step to step, small enough to record on one core.

Each is a stack of residual blocks of which a step uses some, or uses them in an order of its own. What decides is the
batch: a `Case` holds its samples and what is known of it before forward, its context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ddpsim.common.errors import UnknownNameError

WIDTH = 128
"""Features of every block, chosen so that a step of a dozen blocks takes milliseconds on a core."""
CLASSES = 16
SAMPLES = 32


@dataclass(frozen=True, slots=True)
class Case:
    """One batch: its samples, their classes, and its context, which is known before forward."""

    samples: Tensor
    classes: Tensor
    context: int

    @classmethod
    def draw(cls, generator: torch.Generator, contexts: int) -> Case:
        """Return a batch whose context shifts its samples, so that what routes by content follows it in part."""
        context = int(torch.randint(contexts, (), generator=generator))
        shift = torch.randn(WIDTH, generator=torch.Generator().manual_seed(context))
        samples = torch.randn((SAMPLES, WIDTH), generator=generator) + shift
        return cls(samples, torch.randint(CLASSES, (SAMPLES,), generator=generator), context)


class ResidualMlp(nn.Module):
    """Adds a two-layer perceptron of what it is given to it."""

    def __init__(self, hidden: int = 2 * WIDTH) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        """Return `value` and what the block adds to it."""
        added: Tensor = self.down(nn.functional.gelu(self.up(self.norm(value))))
        return value + added


def _blocks(count: int) -> nn.ModuleList:
    return nn.ModuleList([ResidualMlp() for _ in range(count)])


class DynamicModel(nn.Module):
    """The base of these models: `forward(case)` returns the loss.

    Attributes:
        CONTEXTS: how many contexts a batch may have.
        KNOWN: whether the context is told before forward; where not, it has to be guessed from what was used.
    """

    CONTEXTS = 4
    KNOWN = True

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.blocks = _blocks(blocks)
        self.chance = torch.Generator().manual_seed(0)

    def seed(self, seed: int) -> None:
        """Begin the chances that the model takes anew, those of one rank."""
        self.chance.manual_seed(seed)

    def loss(self, value: Tensor, case: Case) -> Tensor:
        """Return the loss of the last block's output."""
        return nn.functional.cross_entropy(self.leave(value), case.classes)


class StochasticDepth(DynamicModel):
    """Leaves each block out with a chance of its own, from 0 at the bottom to a half at the top (stochastic depth,
    Huang et al., 2016); every rank draws for itself."""

    KNOWN = False

    def __init__(self) -> None:
        super().__init__(10)

    def forward(self, case: Case) -> Tensor:
        """Return the loss of the blocks that stay."""
        value = self.enter(case.samples)
        for number, block in enumerate(self.blocks):
            if float(torch.rand((), generator=self.chance)) >= 0.5 * number / (len(self.blocks) - 1):
                value = block(value)
        return self.loss(value, case)


class EarlyExit(DynamicModel):
    """Leaves by the exit that a batch's difficulty, its context, asks for; blocks and exits above it go unused."""

    CONTEXTS = 5

    def __init__(self) -> None:
        super().__init__(10)
        self.exits = nn.ModuleList([nn.Linear(WIDTH, CLASSES) for _ in range(self.CONTEXTS)])

    def forward(self, case: Case) -> Tensor:
        """Return the loss at the exit."""
        value = self.enter(case.samples)
        depth = 2 * (case.context + 1)
        for block in self.blocks[:depth]:
            value = block(value)
        return nn.functional.cross_entropy(self.exits[case.context](value), case.classes)


class MixtureOfExperts(DynamicModel):
    """Sends each of a few groups of samples to one of eight experts, in three layers; most stay unused on a rank."""

    EXPERTS, GROUPS, LAYERS = 8, 4, 3

    def __init__(self) -> None:
        super().__init__(3)
        self.routers = nn.ModuleList([nn.Linear(WIDTH, self.EXPERTS) for _ in range(self.LAYERS)])
        self.experts = nn.ModuleList([_blocks(self.EXPERTS) for _ in range(self.LAYERS)])

    def forward(self, case: Case) -> Tensor:
        """Return the loss, each group through the expert of its highest score, weighted by it."""
        value = self.enter(case.samples)
        for dense, router, experts in zip(self.blocks, self.routers, self.experts, strict=True):
            value = dense(value)
            groups = value.chunk(self.GROUPS)
            scores = [router(group.mean(0)).softmax(0) for group in groups]
            parts = []
            for group, score in zip(groups, scores, strict=True):
                best = int(score.detach().argmax())
                parts.append(group + score[best] * experts[best](group))  # type: ignore[index]
            value = torch.cat(parts)
        return self.loss(value, case)


class MultiBranch(DynamicModel):
    """Runs four branches one after another, in an order that the batch's context gives; all are used."""

    BRANCHES, DEPTH = 4, 3
    ORDERS = ((0, 1, 2, 3), (3, 1, 0, 2), (1, 3, 2, 0), (2, 0, 3, 1))

    def __init__(self) -> None:
        super().__init__(1)
        self.branches = nn.ModuleList([nn.Sequential(*_blocks(self.DEPTH)) for _ in range(self.BRANCHES)])

    def forward(self, case: Case) -> Tensor:
        """Return the loss of the branches' sum."""
        value = self.blocks[0](self.enter(case.samples))
        total = value
        for number in self.ORDERS[case.context]:
            total = total + self.branches[number](value)
        return self.loss(total, case)


class MultiTask(DynamicModel):
    """Trains one of six heads on a trunk; the task is the context, and the other heads go unused."""

    CONTEXTS, DEPTH = 6, 2

    def __init__(self) -> None:
        super().__init__(4)
        self.heads = nn.ModuleList([nn.Sequential(*_blocks(self.DEPTH)) for _ in range(self.CONTEXTS)])

    def forward(self, case: Case) -> Tensor:
        """Return the loss of the task's head."""
        value = self.enter(case.samples)
        for block in self.blocks:
            value = block(value)
        return self.loss(self.heads[case.context](value), case)


class Checkpointing(DynamicModel):
    """Computes again, in backward, as many segments as a batch's length, its context, asks for."""

    SEGMENTS = 3

    def __init__(self) -> None:
        super().__init__(9)

    def forward(self, case: Case) -> Tensor:
        """Return the loss; the lowest segments keep no activations."""
        value = self.enter(case.samples)
        size = len(self.blocks) // self.SEGMENTS
        for segment in range(self.SEGMENTS):
            blocks = nn.Sequential(*self.blocks[segment * size : (segment + 1) * size])
            value = checkpoint(blocks, value, use_reentrant=False) if segment < case.context else blocks(value)
        return self.loss(value, case)


class DynamicDepth(DynamicModel):
    """Passes a block only where its router says so of the batch's mean (mixture of depths); no context tells which."""

    KNOWN = False

    def __init__(self) -> None:
        super().__init__(10)
        self.routers = nn.ModuleList([nn.Linear(WIDTH, 1) for _ in self.blocks])

    def forward(self, case: Case) -> Tensor:
        """Return the loss of the blocks that were passed, each weighted by its router."""
        value = self.enter(case.samples)
        for number, (block, router) in enumerate(zip(self.blocks, self.routers, strict=True)):
            score = router(value.mean(0))
            if number % 3 == 0 or float(score.detach()) > 0:
                value = value + torch.sigmoid(score) * (block(value) - value)
        return self.loss(value, case)


CHANGING: Mapping[str, Callable[[], DynamicModel]] = MappingProxyType(
    {
        "layer-drop": StochasticDepth,
        "early-exit": EarlyExit,
        "experts": MixtureOfExperts,
        "branches": MultiBranch,
        "tasks": MultiTask,
        "checkpointing": Checkpointing,
        "dynamic-depth": DynamicDepth,
    }
)
"""Name to class."""


def make_changing_model(name: str, seed: int = 0) -> DynamicModel:
    """Return the model called `name`, its parameters drawn from `seed`.

    Raises:
        UnknownNameError: no such model; the nearest names are given.
    """
    if name not in CHANGING:
        raise UnknownNameError.among("model whose order changes", name, CHANGING)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CHANGING[name]()
