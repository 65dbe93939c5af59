"""A training step as a user has one: a transformer with a tied embedding and a mixture of experts, under autocast."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

VOCABULARY, WIDTH, HEADS, LAYERS, EXPERTS = 32000, 768, 12, 12, 8
BATCH, TOKENS = 8, 512


class Experts(nn.Module):
    """Each expert computes the tokens that it scores highest, as many as everybody's share."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(perceptron() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the experts make of each token, weighted; zero for tokens that none chose."""
        tokens = x.reshape(-1, WIDTH)
        weights, chosen = self.gate(tokens).softmax(-1).t().topk(len(tokens) // EXPERTS)
        out = torch.zeros_like(tokens)
        for expert, weight, rows in zip(self.experts, weights, chosen, strict=True):
            out = out.index_add(0, rows, (expert(tokens[rows]) * weight[:, None]).to(out.dtype))
        return out.view_as(x)


class TransformerBlock(nn.Module):
    """Attention, then a perceptron or experts."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = Experts() if number % 2 else perceptron()

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with attention and perceptron added."""
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        fed: Tensor = self.feed(self.norms[1](x))
        return x + fed


class LanguageModel(nn.Module):
    """Its output is tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(TransformerBlock(number) for number in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores of each next token."""
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places.weight)))  # type: ignore[no-any-return]


def perceptron() -> nn.Module:
    """Return two linear layers, four times as wide between."""
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def make_training() -> tuple[nn.Module, Callable[[], None]]:
    """Return the model and its step, as `python -m ddpexec estimate --step` takes them."""
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(VOCABULARY, (BATCH, TOKENS))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return model, step
