"""AlexNet (Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014) as a step to estimate.

python -m ddpexec estimate --step studies.paper.alexnet:training_step --gpu V100 --precision fp32 \
    -o studies/paper/headlines/alexnet.json.gz

Layers and shapes are those of torchvision's; 61,100,840 parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

BATCH = 128


class AlexNet(nn.Module):
    """Five convolutions, then three linear layers that hold 96 % of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(True), nn.MaxPool2d(3, 2)]
        layers += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(True), nn.MaxPool2d(3, 2)]
        for before, after in ((192, 384), (384, 256), (256, 256)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(True)]
        self.features = nn.Sequential(*layers, nn.MaxPool2d(3, 2))
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(256 * 36, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(True),
            nn.Linear(4096, 1000),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, 1000) for images (batch, 3, 224, 224)."""
        return self.classifier(self.features(x).flatten(1))  # type: ignore[no-any-return]


def training_step() -> tuple[nn.Module, Callable[[], None]]:
    """Return the model, and what trains it once."""
    model = AlexNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(BATCH, 3, 224, 224), torch.randint(1000, (BATCH,))

    def step() -> None:
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step
