"""ViT-B/16 as torchvision lays it out (Dosovitskiy et al. 2020)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from ddpexec.capturing.models.training import TrainingModel, classifier

_WIDTH, _HEADS, _LAYERS, _HIDDEN, _PATCH, _IMAGE = 768, 12, 12, 3072, 16, 224
"""Of ViT-B/16 (Dosovitskiy et al. 2021, table 1); patches and images are squares of so many pixels a side."""
_EPSILON = 1e-6
"""Of layer norms, as torchvision has it."""


class ViTSelfAttention(nn.Module):
    """Attention with the parameters of `nn.MultiheadAttention`."""

    def __init__(self) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * _WIDTH, _WIDTH))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * _WIDTH))
        self.out_proj = nn.Linear(_WIDTH, _WIDTH)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended values for `x` (batch, tokens, width)."""
        joint = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        query, key, value = joint.view(*x.shape[:-1], 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out_proj(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and around a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(_WIDTH, eps=_EPSILON)
        self.self_attention = ViTSelfAttention()
        self.ln_2 = nn.LayerNorm(_WIDTH, eps=_EPSILON)
        self.mlp = nn.Sequential(
            nn.Linear(_WIDTH, _HIDDEN), nn.GELU(), nn.Identity(), nn.Linear(_HIDDEN, _WIDTH), nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output for `x` (batch, tokens, width)."""
        x = x + self.self_attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Position embedding and twelve layers."""

    def __init__(self) -> None:
        super().__init__()
        tokens = (_IMAGE // _PATCH) ** 2 + 1
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, _WIDTH).normal_(std=0.02))
        self.layers = nn.Sequential(OrderedDict((f"encoder_layer_{i}", EncoderLayer()) for i in range(_LAYERS)))
        self.ln = nn.LayerNorm(_WIDTH, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed output for `x` (batch, tokens, width)."""
        return self.ln(self.layers(x + self.pos_embedding))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Patches, a class token, the encoder, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_proj = nn.Conv2d(3, _WIDTH, _PATCH, _PATCH)
        self.class_token = nn.Parameter(torch.zeros(1, 1, _WIDTH))
        self.encoder = Encoder()
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(_WIDTH, 1000)))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, 1000) for images (batch, 3, 224, 224)."""
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1)
        return self.heads(self.encoder(tokens)[:, 0])  # type: ignore[no-any-return]


def vit_b16() -> TrainingModel:
    """Return ViT-B/16: 86,567,656 parameters."""
    return classifier("vit-b16", VisionTransformer(), 32, (3, _IMAGE, _IMAGE), 1000)
