"""Random models and options for DDP: shared, unused, frozen and nested parameters, several dtypes."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.complex64)
WIDTH = 5


class Layer(nn.Module):
    """A linear map in one dtype, of anything in any dtype."""

    def __init__(self, dtype: torch.dtype, frozen: bool, strided: bool) -> None:
        super().__init__()
        weight = torch.randn(WIDTH, WIDTH, dtype=dtype)
        self.weight = nn.Parameter(weight.t() if strided else weight)
        self.bias = nn.Parameter(torch.randn(WIDTH, dtype=dtype), requires_grad=not frozen)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_complex() and not self.weight.is_complex():
            x = x.abs()
        return torch.tanh(x.to(self.weight.dtype) @ self.weight + self.bias)


class RandomModel(nn.Module):
    """Layers in a random tree; `forward` uses those that its seed picks, differently on each rank if asked for."""

    def __init__(self, pick: random.Random, unused: bool) -> None:
        super().__init__()
        dtypes = pick.sample(DTYPES, pick.choice((1, 1, 2, 3)))
        count = pick.randint(1, 7)
        layers = [Layer(pick.choice(dtypes), pick.random() < 0.2, pick.random() < 0.3) for _ in range(count)]
        for layer in layers[1:]:
            twin = pick.choice(layers)
            if pick.random() < 0.2 and twin.bias.requires_grad:
                layer.bias = twin.bias
        self.first = layers[0]
        self.inner = nn.ModuleDict({"list": nn.ModuleList(layers[1:])})
        self.embedding = nn.Embedding(6, WIDTH, sparse=pick.random() < 0.5) if pick.random() < 0.3 else None
        self.register_buffer("steps", torch.zeros(3))
        self.unused = unused

    def forward(self, x: Tensor, seed: int) -> dict[str, Any]:
        pick = random.Random(seed)
        if self.embedding is not None:
            x = x + self.embedding(torch.arange(x.shape[0]) % 6)
        x = self.first(x)
        side = []
        for layer in self.inner["list"]:
            if self.unused and pick.random() < 0.3:
                continue
            x = layer(x)
            if pick.random() < 0.2:
                side.append(x)
        self.steps += 1
        return {"main": x, "side": (side, len(side))}


def loss_of(output: dict[str, Any]) -> Tensor:
    """Return a real scalar of every output."""
    tensors = [output["main"], *output["side"][0]]
    return sum(t.abs().double().square().mean() for t in tensors)  # type: ignore[return-value]


def random_case(seed: int) -> tuple[RandomModel, dict[str, Any], dict[str, Any]]:
    """Return a model, constructor options, and how to train: `set_to_none`, `accumulate`, `by_rank`."""
    pick = random.Random(seed)
    torch.manual_seed(seed)
    unused = pick.random() < 0.5
    options: dict[str, Any] = {
        "find_unused_parameters": unused,
        "gradient_as_bucket_view": pick.random() < 0.5,
        "batched_grad_copy": pick.random() < 0.3,
        "forward_sync_buffers": pick.random() < 0.7,
    }
    caps = pick.choice(("default", "one", "one", "list", "zero"))
    if caps == "one":
        options["bucket_cap_mb"] = pick.choice((0.0001, 0.0003, 0.001))
    elif caps == "list":
        options["bucket_cap_mb_list"] = [pick.choice((0.0001, 0.0002, 0.0005)) for _ in range(pick.randint(1, 3))]
    elif caps == "zero":
        options["bucket_cap_mb"] = 0
    if not unused and pick.random() < 0.2:
        options["static_graph"] = True
    how = {"set_to_none": pick.random() < 0.7, "accumulate": pick.random() < 0.3, "by_rank": pick.random() < 0.5}
    return RandomModel(pick, unused), options, how
