"""Random models and options for DDP: shared, unused, frozen and nested parameters, several dtypes, sparse gradients."""

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


class Nested(nn.Module):
    """A layer a level down, under a batch norm where it is of a type that has one."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        floating = layer.weight.dtype == layer.bias.dtype and layer.weight.dtype in (torch.float32, torch.float64)
        norm = nn.BatchNorm1d(WIDTH, dtype=layer.weight.dtype) if floating else nn.Identity()
        self.body = nn.ModuleDict({"inner": nn.Sequential(layer, norm)})

    def forward(self, x: Tensor) -> Tensor:
        return self.body["inner"](x)


class RandomModel(nn.Module):
    """Layers in a random tree; `forward` uses those that its seed picks, differently on each rank if asked for.

    `features` names what is in it.
    """

    def __init__(self, pick: random.Random, unused: bool) -> None:
        super().__init__()
        dtypes = pick.sample(DTYPES, pick.choice((1, 1, 2, 3)))
        count = pick.randint(1, 7)
        self.features = {str(dtype) for dtype in dtypes} | ({"unused"} if unused else set())
        self.features |= {"several dtypes"} if len(dtypes) > 1 else set()
        plain: list[Layer] = []
        layers: list[nn.Module] = []
        for _ in range(count):
            frozen, strided, nested = pick.random() < 0.2, pick.random() < 0.3, pick.random() < 0.3
            layer = Layer(pick.choice(dtypes), frozen, strided)
            for twin in pick.sample(plain, min(1, len(plain))):
                if pick.random() < 0.3 and twin.bias.requires_grad:
                    layer.bias = twin.bias
                    self.features.add("shared")
            plain.append(layer)
            layers.append(Nested(layer) if nested else layer)
            chosen = {"frozen": frozen, "strided": strided, "nested": nested}
            self.features |= {name for name, here in chosen.items() if here}
        if count > 1 and pick.random() < 0.2:
            layers.append(layers[1])  # applied twice
            self.features.add("applied twice")
        self.first = layers[0]
        self.inner = nn.ModuleDict({"list": nn.ModuleList(layers[1:])})
        self.embedding = nn.Embedding(6, WIDTH, sparse=pick.random() < 0.5) if pick.random() < 0.3 else None
        if self.embedding is not None and self.embedding.sparse:
            self.features.add("sparse")
        self.register_buffer("steps", torch.zeros(3))
        self.unused = unused

    def forward(self, x: Tensor, seed: int) -> dict[str, Any]:
        pick = random.Random(seed)
        if self.embedding is not None:
            x = x + self.embedding(torch.arange(x.shape[0]) % 6)
        x = self.first(x)
        side = []
        layers = list(self.inner["list"])
        if self.unused:
            pick.shuffle(layers)
        for layer in layers:
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
    """Return a model, constructor options, and how to train: `set_to_none`, `accumulate`, `by_rank`.

    `skip_all_reduce_unused_params` rules out `accumulate`, in which torch's class fails, and `by_rank`, each rank using
    layers of its own.
    """
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
    if unused and pick.random() < 0.2:
        options["skip_all_reduce_unused_params"] = True
    how = {"set_to_none": pick.random() < 0.7, "accumulate": pick.random() < 0.3, "by_rank": pick.random() < 0.5}
    skipping = "skip_all_reduce_unused_params" in options
    how["by_rank"] &= unused and not skipping
    how["accumulate"] &= not skipping
    return RandomModel(pick, unused), options, how
