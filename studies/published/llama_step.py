"""Llama 3.2 1B as Hugging Face writes it, trained under autocast and compiled: a step of published sweeps of caps."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

WIDTH, INNER, LAYERS, HEADS, GROUPS, VOCABULARY = 2048, 8192, 16, 32, 8, 128256


class RootMeanSquareNorm(nn.Module):
    """A norm without mean, computed in fp32; its result is as wide as what it was given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` (..., width) over its root mean square."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * wide.to(x.dtype)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Return a linear layer without a bias."""
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Causal attention whose groups of queries share keys and values, with rotated queries and keys."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.size = width // heads
        narrow = groups * self.size
        self.query, self.key, self.value = linear(width, width), linear(width, narrow), linear(width, narrow)
        self.output = linear(width, width)

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        low, high = x[..., : self.size // 2], x[..., self.size // 2 :]
        return x * cos + torch.cat((-high, low), dim=-1) * sin

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the attended values for `x` (batch, length, width); `cos` and `sin` are (length, size of a head)."""
        query, key, value = (
            each(x).unflatten(-1, (-1, self.size)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        query, key = self._rotated(query, cos, sin), self._rotated(key, cos, sin)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.output(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """Attention and a gated perceptron, each after a norm and around a shortcut."""

    def __init__(self, width: int, inner: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm_1, self.attention = RootMeanSquareNorm(width), Attention(width, heads, groups)
        self.norm_2 = RootMeanSquareNorm(width)
        self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the layer's output for `x` (batch, length, width)."""
        x = x + self.attention(self.norm_1(x), cos, sin)
        hidden = self.norm_2(x)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))  # type: ignore[no-any-return]


class Layers(nn.Module):
    """Layers and a norm, without embeddings."""

    def __init__(self, width: int, inner: int, layers: int, heads: int, groups: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, inner, heads, groups) for _ in range(layers))
        self.norm = RootMeanSquareNorm(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the last layer's output for `x` (batch, length, width), normalised."""
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Embeddings that the head shares, layers and a norm; forward gives the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.body = Layers(WIDTH, INNER, LAYERS, HEADS, GROUPS)
        self.head = linear(WIDTH, VOCABULARY)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of `tokens` (batch, length) against `targets`."""
        logits = self.head(self.body(self.embedding(tokens), cos, sin))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def training(batch: int, length: int = 8192) -> tuple[nn.Module, Callable[[], object]]:
    """Return the compiled model and a step of it under autocast, without an optimizer."""
    model: nn.Module = torch.compile(Llama())  # type: ignore[assignment]
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    rotation = torch.ones(length, WIDTH // HEADS)

    def step() -> object:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, rotation, rotation, tokens)
        loss.backward()
        return loss

    return model, step
