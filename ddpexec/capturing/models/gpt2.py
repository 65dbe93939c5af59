"""GPT-2 small as Hugging Face's `GPT2LMHeadModel` lays it out (Radford et al. 2019): the output is the embedding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ddpexec.capturing.models.training import Batch, TrainingModel, as_tensor, with_length

POSITIONS, _SEQUENCE = 1024, 512
"""Of the models of Radford et al. 2019; sequences of half the positions are trained on here."""


class Gpt2Sizes(NamedTuple):
    """The sizes of a GPT-2."""

    vocabulary: int
    width: int
    heads: int
    layers: int
    positions: int = POSITIONS


SMALL = Gpt2Sizes(50257, 768, 12, 12)
"""The smallest model of Radford et al. 2019."""
MINI, _MINI_SEQUENCE = Gpt2Sizes(4096, 256, 4, 6, 256), 64
"""One whose step takes a core of a laptop some 100 ms and whose gradients are 24 MB, so that a run of many steps takes
seconds and torch's default buckets are few; chosen by hand."""


class Conv1D(nn.Module):
    """A linear layer with its weight transposed, as GPT-2 stores it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(std=0.02))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight + bias`."""
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).view(*x.shape[:-1], -1)


class Attention(nn.Module):
    """Self-attention in which a token sees only those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = Conv1D(width, 3 * width)
        self.c_proj = Conv1D(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended values for `x` (batch, sequence, width)."""
        query, key, value = self.c_attn(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.c_proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class GPT2Block(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and around a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"c_fc": Conv1D(width, 4 * width), "c_proj": Conv1D(4 * width, width)})
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for `x` (batch, sequence, width)."""
        x = x + self.dropout(self.attn(self.ln_1(x)))
        hidden = nn.functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.dropout(self.mlp["c_proj"](hidden))  # type: ignore[no-any-return]


class GPT2(nn.Module):
    """Embeddings, blocks, a norm, and the word embedding once more as the output."""

    def __init__(self, shape: Gpt2Sizes) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(shape.vocabulary, shape.width),
                "wpe": nn.Embedding(shape.positions, shape.width),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList(GPT2Block(shape.width, shape.heads) for _ in range(shape.layers)),
                "ln_f": nn.LayerNorm(shape.width),
            }
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (batch, sequence, vocabulary) for token numbers (batch, sequence)."""
        parts = self.transformer
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = parts["drop"](parts["wte"](tokens) + parts["wpe"](positions))
        for block in parts["h"].children():
            x = block(x)
        return nn.functional.linear(parts["ln_f"](x), parts["wte"].weight)  # type: ignore[arg-type]


def _loss(output: object, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(as_tensor(output).flatten(0, 1), batch.targets[0].flatten())


def _model(name: str, shape: Gpt2Sizes, length: int) -> TrainingModel:
    def make_batch(size: int, device: torch.device, generator: torch.Generator | None) -> Batch:
        tokens = torch.randint(shape.vocabulary, (size, length + 1), device=device, generator=generator)
        return Batch((tokens[:, :-1].contiguous(),), (tokens[:, 1:].contiguous(),))

    return TrainingModel(name, GPT2(shape), 8, f"sequence of {length} tokens", make_batch, _loss)


def gpt2_small(sequence_length: int = _SEQUENCE) -> TrainingModel:
    """Return GPT-2 small: 124,439,808 parameters."""
    return _model(with_length("gpt2-small", sequence_length, _SEQUENCE), SMALL, sequence_length)


def gpt2_mini() -> TrainingModel:
    """Return a GPT-2 that two cores train in a tenth of a second a step: 5,853,184 parameters."""
    return _model("gpt2-mini", MINI, _MINI_SEQUENCE)
