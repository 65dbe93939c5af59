"""Models that others timed and this project does not ship: a Llama written out operator by operator, and small ViTs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.capturing.models.training import Batch, TrainingModel, as_tensor, classifier

_VOCABULARY = 10_000
WRITTEN_OUT = {
    "plain-small": (768, 3072, 12, 12),
    "plain-medium": (1024, 4096, 24, 16),
    "plain-large": (1280, 5120, 36, 20),
    "plain-xl": (1600, 6400, 48, 25),
    "plain-2.7b": (2560, 10240, 32, 32),
}
"""Width, hidden width, layers and heads of the sizes that Stanford's CS336 has timed, 2025 and 2026."""

VITS = {
    "vit-tiny16": (192, 12, 3, 16),
    "vit-small16": (384, 12, 6, 16),
    "vit-base16": (768, 12, 12, 16),
    "vit-base32": (768, 12, 12, 32),
    "vit-large16": (1024, 24, 16, 16),
    "vit-large32": (1024, 24, 16, 32),
}
"""Width, layers, heads and patch of timm's ViTs for images of 224 pixels."""


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension, an operator at a time."""
    powers = torch.exp(scores - scores.max(dim=-1, keepdim=True)[0])
    return powers / powers.sum(dim=-1, keepdim=True)


class RootMeanSquareNorm(nn.Module):
    """A norm without mean, computed in fp32 whatever it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` (..., width) over its root mean square, in its own type."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (self.weight * wide).to(x.dtype)


class Product(nn.Module):
    """A linear layer without bias, by `einsum`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight.T`."""
        return torch.einsum("...i,oi->...o", x, self.weight)


class WrittenOutAttention(nn.Module):
    """Causal attention with rotated queries and keys, whose scores and their softmax are written to memory."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (Product(width, width) for _ in range(4))
        self.register_buffer("cos", torch.ones(length, width // heads // 2))
        self.register_buffer("sin", torch.ones(length, width // heads // 2))

    def _rotated(self, x: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        turned = torch.zeros_like(x)
        turned[..., ::2] = even * self.cos - odd * self.sin
        turned[..., 1::2] = even * self.sin + odd * self.cos
        return turned

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended values for `x` (batch, length, width)."""
        query, key, value = (
            each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        query, key = self._rotated(query), self._rotated(key)
        scores = torch.einsum("...qd,...kd->...qk", query, key) / math.sqrt(key.shape[-1])
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device)
        weights = softmax(torch.where(mask, scores, float("-inf")))
        attended = torch.einsum("...qk,...kd->...qd", weights, value)
        return self.output(attended.transpose(1, 2).flatten(2).contiguous())  # type: ignore[no-any-return]


class WrittenOutBlock(nn.Module):
    """Attention and a gated perceptron, each after a norm and around a shortcut."""

    def __init__(self, width: int, hidden: int, heads: int, length: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = RootMeanSquareNorm(width), RootMeanSquareNorm(width)
        self.attention = WrittenOutAttention(width, heads, length)
        self.gate, self.up, self.down = Product(width, hidden), Product(width, hidden), Product(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for `x` (batch, length, width)."""
        x = x + self.attention(self.norm_1(x))
        hidden = self.norm_2(x)
        gate = self.gate(hidden)
        return x + self.down(gate * torch.sigmoid(gate) * self.up(hidden))  # type: ignore[no-any-return]


class WrittenOut(nn.Module):
    """An embedding, blocks, a norm and a head of its own."""

    def __init__(self, width: int, hidden: int, layers: int, heads: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.layers = nn.ModuleList(WrittenOutBlock(width, hidden, heads, length) for _ in range(layers))
        self.norm, self.head = RootMeanSquareNorm(width), Product(width, _VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, length, vocabulary)."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class VisionBlock(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and around a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.joint, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for `x` (batch, tokens, width)."""
        joint = self.joint(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        attended = nn.functional.scaled_dot_product_attention(*joint.permute(2, 0, 3, 1, 4))
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))  # type: ignore[no-any-return]


class SmallViT(nn.Module):
    """Patches, a class token, blocks and a linear head."""

    def __init__(self, width: int, layers: int, heads: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (224 // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(VisionBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (batch, 1000) for images (batch, 3, 224, 224)."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])  # type: ignore[no-any-return]


def plain(name: str, length: int) -> TrainingModel:
    """Return the model called `name` of `WRITTEN_OUT` or `VITS`, for sequences of `length` tokens."""
    if name in VITS:
        return classifier(name, SmallViT(*VITS[name]), 8, (3, 224, 224), 1000)

    def make_batch(size: int, device: torch.device, generator: torch.Generator | None) -> Batch:
        tokens = torch.randint(_VOCABULARY, (size, length), device=device)
        return Batch((tokens,), (tokens,))

    def loss(output: Any, batch: Batch) -> Tensor:
        logits, target = as_tensor(output).flatten(0, 1), batch.targets[0].flatten()
        shifted = logits - logits.max(dim=-1, keepdim=True)[0]
        of_target = shifted.gather(1, target[:, None]).squeeze(1)
        return (shifted.exp().sum(-1).log() - of_target).mean()

    module = WrittenOut(*WRITTEN_OUT[name], length)
    return TrainingModel(name, module, 4, f"sequence of {length} tokens", make_batch, loss)
