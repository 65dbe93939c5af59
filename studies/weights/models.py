"""Random models: branches, shared, unused and frozen parameters, several dtypes, buffers, activation checkpoints.

Layers compute in float64 whatever their parameters' dtype is, so that what rounds is what a scheme does with gradients.
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, ROWS, WORDS = 5, 3, 7
LARGE = 8_300
"""Elements of a parameter that is copied as it comes: more than 64 KiB of float64."""


class Layer(nn.Module):
    """A linear map with a tanh; `strided` keeps its weight transposed in memory."""

    def __init__(self, dtype: torch.dtype, *, frozen: bool = False, strided: bool = False) -> None:
        super().__init__()
        weight = (torch.randn(WIDTH, WIDTH, dtype=torch.float64) / 2).to(dtype)
        self.weight = nn.Parameter(weight.t() if strided else weight)
        self.bias = nn.Parameter((torch.randn(WIDTH, dtype=torch.float64) / 2).to(dtype), requires_grad=not frozen)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ wide(self.weight) + wide(self.bias))


class Tied(nn.Module):
    """It uses the weights of a layer that it never calls, and a scale of its own."""

    def __init__(self, layer: Layer, scalar: bool = True) -> None:
        super().__init__()
        self.holder = layer
        self.scale = nn.Parameter(torch.ones(() if scalar else (1,), dtype=layer.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ wide(self.holder.weight) + wide(self.holder.bias)) * wide(self.scale)


class Checkpointed(nn.Module):
    """It computes its layer's activations again in backward."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = checkpoint(self.layer, x, use_reentrant=False)
        return found


class Twice(nn.Module):
    """It applies its layer twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(self.layer(x))
        return found


class Centred(nn.Module):
    """It takes a running mean off, which is a buffer, behind its layer."""

    mean: Tensor

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("mean", torch.zeros(WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return x - self.mean


class Odd(nn.Module):
    """It has a large parameter, and one of so many rows: without elements where there are none."""

    def __init__(self, dtype: torch.dtype, rows: int) -> None:
        super().__init__()
        self.large = nn.Parameter((torch.randn(LARGE, dtype=torch.float64) / 50).to(dtype))
        self.none = nn.Parameter(torch.zeros(rows, 2, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        pattern = torch.arange(LARGE, dtype=torch.float64).sin() / 30
        return x + (wide(self.large) * pattern).sum() * x.mean() + wide(self.none).sum()


class Linear(nn.Module):
    """Its output is linear in its parameters, whose gradients then depend on the batch alone."""

    def __init__(self) -> None:
        super().__init__()
        shapes = ((3,), (2, 4), (1,), (7,))
        self.parts = nn.ParameterList(torch.randn(shape, dtype=torch.float64) for shape in shapes)

    def forward(self, x: Tensor, words: Tensor, number: int) -> dict[str, Any]:
        weighed = (part * torch.arange(part.numel()).view(part.shape) for part in self.parts)
        return {"linear": sum((x.mean() + place) * part.sum() for place, part in enumerate(weighed))}


WRAPPERS = {"plain": None, "tied": Tied, "checkpointed": Checkpointed, "twice": Twice, "centred": Centred}


class RandomModel(nn.Module):
    """Blocks in a row, of which `forward` leaves some out where `unused`, as a number picks.

    Args:
        pick: draws the structure.
        dtypes: of the parameters.
        unused: whether a forward may leave blocks out, and the loss an output.
        sparse: whether an embedding's gradients are sparse; None is no embedding.
        shareable: whether blocks may share parameters.
        plain: whether to leave out what `fully_shard` takes none of: scalars, no elements, strides, other dtypes.
    """

    def __init__(
        self,
        pick: random.Random,
        dtypes: list[torch.dtype],
        *,
        unused: bool,
        sparse: bool | None,
        shareable: bool,
        plain: bool,
    ) -> None:
        super().__init__()
        self.unused = unused
        self.embedding = None
        if sparse is not None:
            self.embedding = nn.Embedding(WORDS, WIDTH, sparse=sparse, dtype=dtypes[0])
        self.first = Layer(dtypes[0])
        blocks: list[nn.Module] = []
        layers = [self.first]
        for _ in range(pick.randint(1, 4)):
            layer = Layer(pick.choice(dtypes), frozen=pick.random() < 0.15, strided=pick.random() < 0.3 and not plain)
            twin = pick.choice(layers)
            if shareable and pick.random() < 0.3 and twin.bias.requires_grad:
                layer.bias = twin.bias
            layers.append(layer)
            kind = WRAPPERS[pick.choice(list(WRAPPERS))]
            blocks.append(layer if kind is None else Tied(layer, not plain) if kind is Tied else kind(layer))
        if pick.random() < 0.3:
            blocks.append(Odd(pick.choice(dtypes), rows=1 if plain else 0))
        self.blocks = nn.ModuleList(blocks)
        self.head, self.aside = Layer(dtypes[-1]), Layer(dtypes[0])
        self.never = nn.Parameter(torch.ones(3, dtype=dtypes[0])) if unused and pick.random() < 0.5 else None

    def forward(self, x: Tensor, words: Tensor, number: int) -> dict[str, Any]:
        pick, x = random.Random(number), wide(x)
        if self.embedding is not None:
            x = x + self.embedding(words).abs().double()
        x = self.first(x)
        for block in self.blocks:
            if not (self.unused and pick.random() < 0.4):
                x = block(x)
        counted = not self.unused or pick.random() < 0.5
        return {"main": self.head(x), "aside": (self.aside(x), counted)}


def loss_of(output: dict[str, Any]) -> Tensor:
    """Return a scalar of the outputs that count."""
    if "linear" in output:
        total: Tensor = output["linear"]
        return total
    aside, counted = output["aside"]
    loss: Tensor = output["main"].square().mean() + output["main"].mean()
    return loss + aside.square().mean() if counted else loss


def wide(tensor: Tensor) -> Tensor:
    """Return real numbers of float64 for those of any dtype."""
    return (tensor.real - tensor.imag / 2).double() if tensor.is_complex() else tensor.double()
