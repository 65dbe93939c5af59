"""Training steps of every awkward kind, as users write them: each function returns `(module, step)`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Made = tuple[nn.Module, Callable[[], object]]

VOCABULARY, WIDTH, HEADS, LAYERS, BATCH, TOKENS = 100, 32, 4, 2, 8, 16
SLEEPERS, SLEEP_S = 4, 0.01


class Slow(torch.autograd.Function):
    """Sleeps twice for its result, and once for its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(2 * SLEEP_S)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(SLEEP_S)
        return gradient.clone()


class Sleeping(nn.Module):
    """Weights of different shapes, with a sleep before the gradient of each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4 + number, bias=False) for number in range(SLEEPERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = Slow.apply(layer(x)[..., :4])
        return x


class Transformer(nn.Module):
    """Output tied to the embedding, and a parameter that nothing uses; `reentrant` checkpoints each block."""

    def __init__(self, *, reentrant: bool | None = None, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = lambda: nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout, batch_first=True)  # noqa: E731
        self.blocks = nn.ModuleList(layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.unused = nn.Parameter(torch.zeros(3))
        self.reentrant = reentrant

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Experts(nn.Module):
    """A mixture of experts: all of them weighted, or each token by one."""

    def __init__(self, *, one_each: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)) for _ in range(4))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.one_each = one_each

    def forward(self, x: Tensor) -> Tensor:
        share = self.gate(x).softmax(-1)
        if not self.one_each:
            return self.out(sum(share[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts)))
        best, number = share.max(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (number == i).nonzero().squeeze(-1)
            y = y.index_add(0, rows, expert(x[rows]) * best[rows, None])
        return self.out(y)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(x).relu()
        return self.left(x), self.right(x)


class Conditional(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return 2 * y if y.sum() > 0 else y


def trained(net: nn.Module, *inputs: Tensor, optimizer: Any = None, clip: bool = False) -> Made:
    chosen = optimizer or torch.optim.AdamW(net.parameters(), lr=1e-3)

    def step() -> None:
        chosen.zero_grad()
        net(*inputs).square().mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        chosen.step()

    return net, step


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (BATCH, TOKENS))


def sleeping() -> Made:
    """Return a step that sleeps between backward and optimizer too; one parameter is frozen, one unused."""
    net = Sleeping()
    net.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    net.unused = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        net(torch.ones(7, 4)).sum().backward()
        time.sleep(SLEEP_S)
        optimizer.step()

    return net, step


def tied() -> Made:
    return trained(Transformer(), tokens())


def checkpointed() -> Made:
    return trained(Transformer(reentrant=False), tokens())


def reentrant() -> Made:
    return trained(Transformer(reentrant=True), tokens())


def weighted_experts() -> Made:
    return trained(Experts(one_each=False), torch.randn(16, WIDTH))


def one_expert_each() -> Made:
    return trained(Experts(one_each=True), torch.randn(16, WIDTH))


def two_losses() -> Made:
    net, x = TwoHeads(), torch.randn(5, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def step() -> None:
        left, right = net(x)
        torch.autograd.backward([left.sum(), right.square().sum()])
        optimizer.step()
        optimizer.zero_grad()

    return net, step


def sparse() -> Made:
    net = nn.Sequential(nn.Embedding(1000, 16, sparse=True), nn.Linear(16, 4))
    return trained(net, torch.randint(1000, (8,)), optimizer=torch.optim.SGD(net.parameters(), lr=0.1))


def convolutional() -> Made:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2))
    return trained(net, torch.randn(2, 3, 8, 8))


def recurrent() -> Made:
    net = nn.Sequential(nn.LSTM(8, 8), Take())
    return trained(net, torch.randn(5, 2, 8))


class Take(nn.Module):
    def forward(self, output: tuple[Tensor, object]) -> Tensor:
        return output[0]


def autocast() -> Made:
    net, given = Transformer(), tokens()
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(given).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return net, step


def autocast_on_gpus() -> Made:
    net, given = nn.Linear(4, 4), torch.ones(2, 4)

    def step() -> None:
        with torch.autocast("cuda", torch.float16):
            loss = net(given).sum()
        loss.backward()

    return net, step


def loaded() -> Made:
    net = nn.Linear(4, 4)
    data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.zeros(12))
    batches = iter(torch.utils.data.DataLoader(data, batch_size=3, shuffle=True))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        samples, targets = next(batches)
        (net(samples).sum(1) - targets).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return net, step


def looping() -> Made:
    """Return a step that begins its data anew where it is over."""
    net, data = nn.Linear(4, 1), torch.utils.data.TensorDataset(torch.randn(12, 4))
    batches = itertools.chain.from_iterable(itertools.repeat(torch.utils.data.DataLoader(data, batch_size=3)))

    def step() -> None:
        (samples,) = next(batches)
        net(samples).sum().backward()

    return net, step


def narrow() -> Made:
    return trained(Transformer().to(torch.bfloat16), tokens())


def conditional() -> Made:
    net = Conditional(4, 4)
    return trained(net, torch.ones(2, 4), optimizer=torch.optim.AdamW(net.parameters(), foreach=False))


def raising() -> Made:
    return trained(nn.Linear(4, 4), torch.ones(3, 5))


def on_a_gpu():
    """A module that is put on a GPU, which an estimate's machine has not."""
    return nn.Linear(2, 2).cuda(), lambda: None


def raising_at_once() -> Made:
    raise ValueError("no data\nhere")


def nothing() -> None:
    return None


def no_backward() -> Made:
    net = nn.Linear(4, 4)
    return net, lambda: net(torch.ones(1, 4))


def twice() -> Made:
    net = nn.Linear(4, 4)

    def step() -> None:
        net(torch.ones(1, 4)).sum().backward()
        net(torch.ones(1, 4)).sum().backward()

    return net, step


def elsewhere() -> Made:
    net, other = nn.Linear(4, 4), nn.Linear(4, 4)

    def step() -> None:
        net(torch.ones(1, 4))
        other(torch.ones(1, 4)).sum().backward()

    return net, step


def frozen() -> Made:
    return trained(nn.Linear(4, 4).requires_grad_(False), torch.ones(1, 4))
