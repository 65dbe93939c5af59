"""Graphs of a compiled step held against torch's own `DDPOptimizer`."""

from __future__ import annotations

from typing import Any

import pytest

from ddpsim.bucketing import BucketCaps, Parameter
from ddpsim.bucketing.compiled import graph_splits
from ddpsim.common.errors import PlanError

MIB = 1 << 20


def test_the_first_graph_is_small_and_an_operators_parameters_stay_together() -> None:
    parameters = [Parameter(f"{layer}.{what}", (size,)) for layer in range(8) for what, size in (("w", MIB), ("b", 1))]
    order = range(15, -1, -1)
    assert graph_splits(parameters, BucketCaps(), order) == [(15, 14), tuple(range(13, -1, -1))]
    assert graph_splits(parameters, BucketCaps(bucket_cap_mb=8), order) == [
        (15, 14), (13, 12, 11, 10), (9, 8, 7, 6), (5, 4, 3, 2), (1, 0)
    ]  # fmt: skip
    listed = BucketCaps(bucket_cap_mb_list=(2, 8, 4))
    assert graph_splits(parameters, listed, order) == graph_splits(parameters, BucketCaps(bucket_cap_mb=8), order)


def test_caps_below_the_first_limit_do_not_compile() -> None:
    with pytest.raises(PlanError, match=r"compiled: torch.compile refuses a bucket cap of 0.5 MiB"):
        graph_splits([Parameter("p", (1,))], BucketCaps(bucket_cap_mb=0.5), [0])


@pytest.mark.parametrize("cap_mb", [1.0, 3.0, 25.0])
@pytest.mark.parametrize("kind", ["plain", "residual"])
def test_the_graphs_are_those_of_torchs_own_optimizer(cap_mb: float, kind: str) -> None:
    torch = pytest.importorskip("torch")
    from torch._dynamo.backends.distributed import DDPOptimizer

    network = _network(torch, kind)
    found: list[Any] = []

    def split(graph: Any, inputs: Any) -> Any:
        optimizer = DDPOptimizer(int(cap_mb * MIB), lambda module, _: module.forward)
        made = optimizer.compile_fn(graph, inputs)
        found.append(optimizer)
        return made

    torch._dynamo.reset()
    torch.compile(network, backend=split)(torch.ones(2, 256)).sum().backward()
    named = {_in_graph(name): index for index, (name, _) in enumerate(network.named_parameters())}
    theirs = [
        {named[each.removeprefix("L_self_").removeprefix("L_fn_")] for each in bucket.params}
        for bucket in reversed(found[0].buckets)
    ]
    parameters = [Parameter(name, tuple(p.shape)) for name, p in network.named_parameters()]
    mine = graph_splits(parameters, BucketCaps(bucket_cap_mb=cap_mb), range(len(parameters) - 1, -1, -1))
    assert [set(graph) for graph in mine] == theirs


def _in_graph(name: str) -> str:
    """Return what dynamo calls the parameter `name` as an input of a graph."""
    *path, leaf = name.split(".")
    return "".join(f"modules_{part}_" for part in path) + f"parameters_{leaf}_"


def _network(torch: Any, kind: str) -> Any:
    def block() -> Any:
        return torch.nn.Sequential(
            torch.nn.LayerNorm(256), torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
        )

    class Residual(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(block() for _ in range(6))

        def forward(self, x: Any) -> Any:
            for each in self.blocks:
                x = x + each(x)
            return x

    return Residual() if kind == "residual" else torch.nn.Sequential(*(block() for _ in range(6)))
