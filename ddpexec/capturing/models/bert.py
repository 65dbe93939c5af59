"""BERT as Hugging Face's `BertModel` lays it out (Devlin et al. 2018), trained on masked tokens.

The decoder is the word embedding, as in BERT, and the pooler's first two outputs stand for the next-sentence logits, so
that every published parameter, and no other, takes part.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ddpexec.capturing.models.training import Batch, TrainingModel, with_length

_VOCABULARY, POSITIONS, _SEQUENCE, _MASKED = 30522, 512, 128, 0.15
"""Of Devlin et al. 2019 and its uncased vocabulary: words, positions, tokens of most training steps, share masked."""
_EPSILON = 1e-12
"""Of layer norms, as google-research/bert has it."""


class Embeddings(nn.Module):
    """Sum of word, position and token-type embeddings, normed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(_VOCABULARY, width, padding_idx=0)
        self.position_embeddings = nn.Embedding(POSITIONS, width)
        self.token_type_embeddings = nn.Embedding(2, width)
        self.LayerNorm = nn.LayerNorm(width, eps=_EPSILON)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("position_ids", torch.arange(POSITIONS).expand(1, -1).clone(), persistent=False)
        self.register_buffer("token_type_ids", torch.zeros(1, POSITIONS, dtype=torch.int64), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (batch, sequence, width) for token numbers (batch, sequence)."""
        positions = self.get_buffer("position_ids")[:, : tokens.shape[1]]
        types = self.get_buffer("token_type_ids")[:, : tokens.shape[1]].expand_as(tokens)
        summed = self.word_embeddings(tokens) + self.token_type_embeddings(types) + self.position_embeddings(positions)
        return self.dropout(self.LayerNorm(summed))  # type: ignore[no-any-return]


class BertSelfAttention(nn.Module):
    """Three projections and scaled dot-product attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended values for `x` (batch, sequence, width)."""
        query, key, value = (self._split(project(x)) for project in (self.query, self.key, self.value))
        dropout = 0.1 if self.training else 0.0
        attended = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return attended.transpose(1, 2).flatten(2)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)


class BertOutput(nn.Module):
    """Projection back to the model's width, dropout, shortcut and norm."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, width)
        self.LayerNorm = nn.LayerNorm(width, eps=_EPSILON)
        self.dropout = nn.Dropout(0.1)

    def forward(self, y: Tensor, x: Tensor) -> Tensor:
        """Return the norm of the projected `y` plus the shortcut `x`."""
        return self.LayerNorm(self.dropout(self.dense(y)) + x)  # type: ignore[no-any-return]


class BertLayer(nn.Module):
    """Attention, then a two-layer perceptron, each normed after its shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": BertSelfAttention(width, heads), "output": BertOutput(width, width)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, 4 * width)})
        self.output = BertOutput(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for `x` (batch, sequence, width)."""
        x = self.attention["output"](self.attention["self"](x), x)
        return self.output(nn.functional.gelu(self.intermediate["dense"](x)), x)  # type: ignore[no-any-return]


class Bert(nn.Module):
    """Embeddings, layers, pooler; predicts masked tokens with the word embedding."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embeddings = Embeddings(width)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(BertLayer(width, heads) for _ in range(layers))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(width, width)})

    def forward(self, tokens: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Return token logits (batch, masked, vocabulary) and the pooled output (batch, width).

        Args:
            tokens: token numbers (batch, sequence).
            masked: positions to predict (batch, masked).
        """
        x = self.embeddings(tokens)
        for layer in self.encoder["layer"].children():
            x = layer(x)
        hidden = x.gather(1, masked.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        pooled = torch.tanh(self.pooler["dense"](x[:, 0]))
        return nn.functional.linear(hidden, self.embeddings.word_embeddings.weight), pooled


def _loss(output: object, batch: Batch) -> Tensor:
    logits, pooled = output  # type: ignore[misc]
    words, follows = batch.targets
    entropy = nn.functional.cross_entropy
    return entropy(logits.flatten(0, 1), words.flatten()) + entropy(pooled[:, :2], follows)  # type: ignore[has-type]


def _model(name: str, module: Bert, batch_size: int, length: int) -> TrainingModel:
    masked = math.ceil(_MASKED * length)

    def make_batch(size: int, device: torch.device, generator: torch.Generator | None) -> Batch:
        def integers(high: int, *shape: int) -> Tensor:
            return torch.randint(high, shape, device=device, generator=generator)

        inputs = (integers(_VOCABULARY, size, length), integers(length, size, masked))
        return Batch(inputs, (integers(_VOCABULARY, size, masked), integers(2, size)))

    name = with_length(name, length, _SEQUENCE)
    return TrainingModel(name, module, batch_size, f"sequence of {length} tokens", make_batch, _loss)


def bert_base(sequence_length: int = _SEQUENCE) -> TrainingModel:
    """Return BERT-base: 109,482,240 parameters."""
    return _model("bert-base", Bert(768, 12, 12), 32, sequence_length)


def bert_large(sequence_length: int = _SEQUENCE) -> TrainingModel:
    """Return BERT-large: 335,141,888 parameters."""
    return _model("bert-large", Bert(1024, 16, 24), 8, sequence_length)
