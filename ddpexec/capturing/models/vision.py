"""Vision models as torchvision lays them out: ResNet-50 and -152, ResNeXt-50 32x4d, VGG-16, ViT-B/16; and a perceptron.

Sources: He et al. 2015; Xie et al. 2016; Simonyan and Zisserman 2014 (without batch normalisation); Dosovitskiy et al.
2020. The multilayer perceptron has ResNet-50's parameters in equal layers, and nearly no computation a byte.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import torch
from torch import Tensor, nn

from ddpexec.capturing.models.training import TrainingModel, classifier

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class VGG(nn.Module):
    """Thirteen convolutions, then three linear layers that hold nine tenths of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, count in _STAGES:
            for before, after in pairwise([channels, *[width] * count]):
                layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(inplace=True)]
            layers.append(nn.MaxPool2d(2, 2))
            channels = width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        head = [nn.Linear(512 * 49, 4096), nn.ReLU(inplace=True), nn.Dropout()]
        self.classifier = nn.Sequential(
            *head, nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, 1000) for images (batch, 3, 224, 224)."""
        return self.classifier(self.avgpool(self.features(x)).flatten(1))  # type: ignore[no-any-return]


def vgg16() -> TrainingModel:
    """Return VGG-16: 138,357,544 parameters."""
    return classifier("vgg16", VGG(), 32, (3, 224, 224), 1000)


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


_MLP_WIDTH, _MLP_LAYERS = 2048, 6
"""Chosen by hand: 16 MiB of weights a layer, so that few layers make torch's default buckets."""


def mlp() -> TrainingModel:
    """Return six linear layers of 2048 x 2048: 25,178,112 parameters."""
    layers: list[nn.Module] = []
    for _ in range(_MLP_LAYERS):
        layers += [nn.Linear(_MLP_WIDTH, _MLP_WIDTH), nn.ReLU()]
    return classifier("mlp", nn.Sequential(*layers[:-1]), 64, (_MLP_WIDTH,), _MLP_WIDTH)


_EXPANSION = 4
"""Channels out of a bottleneck over those inside (He et al. 2016, section 4.1)."""


class Bottleneck(nn.Module):
    """Three convolutions around a shortcut; the stride is in the 3x3 one, as in torchvision."""

    def __init__(self, channels_in: int, planes: int, stride: int, groups: int, base_width: int) -> None:
        super().__init__()
        width = planes * base_width // 64 * groups
        out = planes * _EXPANSION
        self.conv1 = nn.Conv2d(channels_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels_in != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for `x` (batch, channels_in, height, width)."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Stem, four stages of bottlenecks, pooling, classifier."""

    def __init__(self, blocks: tuple[int, int, int, int], groups: int = 1, base_width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = 64
        for stage, count in enumerate(blocks):
            planes = 64 << stage
            strides = [1 if stage == 0 else 2, *[1] * (count - 1)]
            layers = []
            for stride in strides:
                layers.append(Bottleneck(channels, planes, stride, groups, base_width))
                channels = planes * _EXPANSION
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, 1000) for images (batch, 3, 224, 224)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def resnet50() -> TrainingModel:
    """Return ResNet-50: 25,557,032 parameters."""
    return classifier("resnet50", ResNet((3, 4, 6, 3)), 32, (3, 224, 224), 1000)


def resnet152() -> TrainingModel:
    """Return ResNet-152: 60,192,808 parameters."""
    return classifier("resnet152", ResNet((3, 8, 36, 3)), 32, (3, 224, 224), 1000)


def resnext50_32x4d() -> TrainingModel:
    """Return ResNeXt-50 32x4d: 25,028,904 parameters."""
    return classifier("resnext50_32x4d", ResNet((3, 4, 6, 3), groups=32, base_width=4), 32, (3, 224, 224), 1000)
