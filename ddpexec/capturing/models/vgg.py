"""VGG-16 without batch normalisation, as torchvision lays it out (Simonyan and Zisserman 2014)."""

from __future__ import annotations

from itertools import pairwise

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
