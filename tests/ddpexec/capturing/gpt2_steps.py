"""GPT-2 as nanoGPT writes it, trained under autocast: the steps whose published peaks of memory are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Made = tuple[nn.Module, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Size:
    """One GPT-2, and how a published run trained it; `flash` attention keeps no scores."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 50257
    tokens: int = 1024
    tied: bool = True
    bias: bool = True
    dropout: float = 0.0
    flash: bool = True
    gelu: Callable[[Tensor], Tensor] = F.gelu


def gelu_in_parts(x: Tensor) -> Tensor:
    """GELU by its formula, as GPT-2 and early nanoGPT have it: eight operators, one of them in fp32 under autocast."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


SMALL = Size(12, 768, 12)
LARGE = Size(36, 1280, 20, vocabulary=50304, gelu=gelu_in_parts)


class Gelu(nn.Module):
    def __init__(self, gelu: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gelu = gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.gelu(x)


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(size.width, 3 * size.width, size.bias), nn.Linear(size.width, size.width)
        self.heads, self.flash, self.drop = size.heads, size.flash, nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True) if self.flash else self.plain(q, k, v)
        return self.drop(self.out(y.transpose(1, 2).reshape(batch, tokens, width)))

    def plain(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1)) * (1.0 / k.shape[-1] ** 0.5)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return self.drop(scores.masked_fill(hidden, float("-inf")).softmax(-1)) @ v


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attention = Attention(size)
        wide = 4 * size.width
        self.mlp = nn.Sequential(nn.Linear(size.width, wide), Gelu(size.gelu), nn.Linear(wide, size.width))
        self.drop = nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.drop(self.mlp(self.second(x)))


class Gpt2(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(size.vocabulary, size.width), nn.Embedding(size.tokens, size.width)
        self.drop = nn.Dropout(size.dropout)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        if size.tied:
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.drop(self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def training(size: Size, batch: int, precision: str = "amp", *, fused: bool | None = None) -> Made:
    """Return a training step of `batch` sequences: `amp` is bf16 autocast, `bf16` has everything in it."""
    module = Gpt2(size).to(torch.bfloat16 if precision == "bf16" else torch.float32)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4, fused=fused)
    tokens = torch.randint(size.vocabulary, (batch, size.tokens))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "amp"):
            loss = module(tokens, tokens)
        loss.backward()
        optimizer.step()

    return module, step


def large() -> Made:
    """GPT-2 Large, 4 sequences a GPU."""
    return training(LARGE, 4)
