"""Random models, caps and options on two and three ranks: gradients equal those of torch's DDP."""

from __future__ import annotations

import copy
import math
import random
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from ddpexec.ddp import DistributedDataParallel  # noqa: E402
from tests.exec.ranks import run  # noqa: E402

WIDTH = 5
STOCK = nn.parallel.DistributedDataParallel


class Layer(nn.Module):
    """One of several kinds, each from WIDTH values to WIDTH values, in a type of its own."""

    def __init__(self, rng):
        super().__init__()
        kind = rng.choice(("plain", "nested", "norm", "frozen", "half frozen"))
        self.body = nn.Linear(WIDTH, WIDTH)
        if kind == "nested":
            hidden = rng.randint(1, 40)
            self.body = nn.Sequential(
                nn.Linear(WIDTH, hidden), nn.Tanh(), nn.ModuleDict({"out": nn.Linear(hidden, WIDTH)})["out"]
            )
        elif kind == "norm":
            self.body = nn.Sequential(self.body, nn.BatchNorm1d(WIDTH))
        elif kind == "frozen":
            self.body.requires_grad_(False)
        elif kind == "half frozen":
            self.body.bias.requires_grad_(False)
        self.to(rng.choice((torch.float32, torch.float32, torch.float64)))

    def forward(self, value):
        dtype = next(self.parameters()).dtype
        return value + torch.tanh(self.body(value.to(dtype))).to(value.dtype)


class Model(nn.Module):
    """Layers applied in the order that the caller names, some of them perhaps twice."""

    def __init__(self, rng):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        layers = [Layer(rng) for _ in range(rng.randint(1, 8))]
        layers += [layers[0]] * rng.randint(0, 1)
        self.layers = nn.ModuleList(layers)
        if rng.random() < 0.3:
            self.tied = self.layers[-1]

    def forward(self, value, order):
        value = self.first(value)
        for index in order:
            value = self.layers[index](value)
        return value


def options_of(rng):
    caps = rng.choice(({}, {"bucket_cap_mb": 0}, {"bucket_cap_mb": 0.0002}, {"bucket_cap_mb_list": [0.0001, 0.0004]}))
    mode = rng.choice(({}, {}, {"static_graph": True}, {"find_unused_parameters": True}))
    return {**caps, **mode, "gradient_as_bucket_view": rng.random() < 0.5, "batched_grad_copy": rng.random() < 0.3}


def orders_of(rng, model, options, ranks):
    """Return the layers each rank uses in each iteration; they vary where the options allow it."""
    everything = list(range(len(model.layers)))
    iterations = 4 if options.get("static_graph") else 3  # one after the rebuild
    if not options.get("find_unused_parameters"):
        shuffled = rng.sample(everything, len(everything))
        return [[shuffled] * iterations] * ranks
    return [[rng.sample(everything, rng.randint(1, len(everything))) for _ in range(iterations)] for _ in range(ranks)]


def train(ddp, orders, rank, accumulate):
    """Return the gradients after each iteration."""
    taken = []
    for iteration, order in enumerate(orders):
        generator = torch.Generator().manual_seed(1000 * rank + iteration)
        ddp.zero_grad()
        if accumulate and iteration == 2:
            with ddp.no_sync():
                ddp(torch.randn(4, WIDTH, generator=generator), order).square().sum().backward()
        ddp(torch.randn(4, WIDTH, generator=generator), order).square().sum().backward()
        taken.append([None if p.grad is None else p.grad.clone() for p in ddp.parameters()])
    return taken


def distance(mine, theirs):
    """Return the largest relative difference; infinity where one gradient exists and the other does not."""
    if mine is None or theirs is None:
        return 0.0 if mine is theirs else math.inf
    return ((mine - theirs).abs().max() / theirs.abs().max().clamp(min=1e-3)).item() if mine.numel() else 0.0


def compare(rank, ranks, seeds):
    """Return (seed, largest difference, options) of the cases, worst first."""
    warnings.simplefilter("ignore")
    found = []
    for seed in seeds:
        rng = random.Random(seed)
        torch.manual_seed(seed)
        model = Model(rng)
        options = options_of(rng)
        orders = orders_of(rng, model, options, ranks)[rank]
        accumulate = not options.get("static_graph") and rng.random() < 0.3
        other = copy.deepcopy(model)
        mine = train(DistributedDataParallel(model, **options), orders, rank, accumulate)
        theirs = train(STOCK(other, **options), orders, rank, accumulate)
        worst = max(distance(a, b) for x, y in zip(mine, theirs, strict=True) for a, b in zip(x, y, strict=True))
        found.append((worst, seed, options))
    return sorted(found, key=lambda case: -case[0])


@pytest.mark.parametrize(("ranks", "seeds", "bound"), [(2, range(130), 0.0), (3, range(130, 200), 1e-5)])
def test_random_models_and_options_give_torchs_gradients(ranks, seeds, bound):
    """Two addends give the same sum in any order; three do so but for rounding."""
    for cases in run(ranks, compare, ranks, seeds, timeout_s=110):
        assert cases[0][0] <= bound, cases[:3]
