"""Train a small ResNet on real images with gradients synchronised every n iterations, and keep how the loss falls.

torchrun --standalone --nproc-per-node 2 -m studies.convergence.convergence

The images are scikit-learn's digits: 1797 scans of 8 x 8 that its wheel ships (UCI, Alpaydin and Kaynak 1998). The
settings are those of figure 11 of Li et al., VLDB 2020: batches of 8 at a learning rate of 0.02 and of 256 at 0.06 a
rank, gradients added up over 1, 2, 4 or 8 iterations under `no_sync()`, after which the optimizer steps. `ddpsim paper
fig11` reads what this keeps. The paper does not state how many ranks, nor the optimizer: two ranks and SGD are ours.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.groups.launched import join_launched
from ddpsim.common.files import write_whole

SETTINGS = ((8, 0.02), (256, 0.06))
"""Samples a rank and iteration, and the learning rate."""
EVERY = (1, 2, 4, 8)
"""Iterations from one synchronisation to the next."""
SEEDS = (7, 8, 9, 10)
"""Not 0 to 6, which had been seen when the rule was made that claim 13 is judged by."""
ITERATIONS = 400
WINDOW = 10
"""Iterations whose mean loss is kept as one number."""
HELD_OUT = 360
"""Images that are not trained on."""


@dataclass(frozen=True)
class Images:
    """Images as (count, 1, 8, 8) from 0 to 1, and their labels."""

    pixels: Tensor
    labels: Tensor

    def __getitem__(self, index: Tensor | slice) -> Images:
        return Images(self.pixels[index], self.labels[index])

    def __len__(self) -> int:
        return len(self.labels)


def digits() -> tuple[Images, Images]:
    """Return what is trained on, and what is held out: the same split for every rank and run."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("scikit-learn is not installed: pip install -e .[exec,dev]")
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(file, "rt") as text:
        table = torch.from_numpy(np.loadtxt(text, delimiter=",", dtype=np.float32))
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(0))]
    every = Images((table[:, :64] / 16).reshape(-1, 1, 8, 8), table[:, 64].long())
    return every[HELD_OUT:], every[:HELD_OUT]


class Block(nn.Module):
    """Two convolutions around which the input goes, as in He et al., 2016."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        stride = 1 if channels == out else 2
        self.first = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(out)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(out)
        self.around = nn.Identity() if stride == 1 else nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(y)) + self.around(x))


def resnet8() -> nn.Module:
    """Return a ResNet of eight layers, for images of 8 x 8."""
    stem = (nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (Block(16, 16), Block(16, 32), Block(32, 64))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def batches(images: Images, size: int, rank: int, ranks: int, seed: int) -> Iterator[Images]:
    """Yield a rank's batches without end: each epoch all images in a new order, the same order on all ranks."""
    generator = torch.Generator().manual_seed(1000 + seed)
    left = torch.empty(0, dtype=torch.long)
    while True:
        while len(left) < size * ranks:
            left = torch.cat([left, torch.randperm(len(images), generator=generator)])
        chosen, left = left[: size * ranks], left[size * ranks :]
        yield images[chosen[rank::ranks]]


def train(images: Images, held_out: Images, size: int, rate: float, every: int, seed: int) -> dict[str, Any]:
    """Train once; return the mean loss of all ranks by window, and what is made of the images held out."""
    torch.manual_seed(seed)
    model = DistributedDataParallel(resnet8())
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses = torch.zeros(ITERATIONS)
    stream = batches(images, size, rank, ranks, seed)
    for number in range(ITERATIONS):
        last = (number + 1) % every == 0
        batch = next(stream)
        with nullcontext() if last else model.no_sync():
            loss = functional.cross_entropy(model(batch.pixels), batch.labels)
            loss.backward()
        losses[number] = loss.detach()
        if last:
            optimizer.step()
            optimizer.zero_grad()
    dist.all_reduce(losses)
    model.eval()
    with torch.no_grad():
        scores = model.module(held_out.pixels)
    right = (scores.argmax(1) == held_out.labels).float().mean()
    windows = (losses / ranks).reshape(-1, WINDOW).mean(1)
    return {
        "batch_size": size,
        "learning_rate": rate,
        "every": every,
        "seed": seed,
        "loss": [round(each, 5) for each in windows.tolist()],
        "held_out_loss": round(float(functional.cross_entropy(scores, held_out.labels)), 5),
        "held_out_accuracy": round(float(right), 4),
    }


def main(output: Path) -> None:
    """Train every setting, every interval and every seed, and write what came of it."""
    torch.set_num_threads(1)
    images, held_out = digits()
    with join_launched("convergence", "gloo", "cpu"):
        asked = [(*setting, every, seed) for setting in SETTINGS for every in EVERY for seed in SEEDS]
        runs = []
        for done, (size, rate, every, seed) in enumerate(asked, 1):
            runs.append(train(images, held_out, size, rate, every, seed))
            if dist.get_rank() == 0:
                print(f"{done} of {len(asked)}: batch {size}, every {every}, {runs[-1]['loss'][-1]}", file=sys.stderr)
        document = {
            "schema": "ddpsim.training/1",
            "images": "scikit-learn's digits",
            "model": "ResNet-8",
            "optimizer": "SGD",
            "ranks": dist.get_world_size(),
            "window": WINDOW,
            "torch": torch.__version__,
            "runs": runs,
        }
        if dist.get_rank() == 0:
            write_whole(output, (json.dumps(document, indent=1) + "\n").encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("digits.json"))
    main(parser.parse_args().output)
