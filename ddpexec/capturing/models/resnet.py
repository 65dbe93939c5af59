"""ResNet-50, ResNet-152 and ResNeXt-50 32x4d, as torchvision lays them out (He et al. 2015; Xie et al. 2016)."""

from __future__ import annotations

from torch import Tensor, nn

from ddpexec.capturing.models.training import TrainingModel, classifier

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
