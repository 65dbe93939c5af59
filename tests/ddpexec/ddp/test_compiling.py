"""`torch.compile` of the wrapped module, of the wrapper, and of a function that calls it."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from tests.ddpexec.groups import ranks


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


@ranks.on(2)
def test_gradients_are_the_same_and_the_module_is_one_graph(rank: int) -> None:
    graphs: list[int] = []

    def backend(graph: Any, _: Any) -> Callable[..., Any]:
        graphs.append(len(graph.graph.nodes))
        return graph.forward

    def inside(ddp: nn.Module) -> Callable[[Tensor], Tensor]:
        ddp.module = torch.compile(ddp.module, backend=backend)
        return lambda x: ddp(x).square().sum()

    def wrapper(ddp: nn.Module) -> Callable[[Tensor], Tensor]:
        whole = torch.compile(ddp, backend=backend)
        return lambda x: whole(x).square().sum()

    def function(ddp: nn.Module) -> Callable[[Tensor], Tensor]:
        return torch.compile(lambda x: ddp(x).square().sum(), backend=backend)

    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}, {"gradient_as_bucket_view": True}):
        for way in (inside, wrapper, function):
            torch._dynamo.reset()
            graphs.clear()
            torch.manual_seed(0)
            net = Net() if way is inside else nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
            plain = nn.parallel.DistributedDataParallel(copy.deepcopy(net), **options)
            ddp = DistributedDataParallel(net, bucket_cap_mb=0.0001, **options)
            loss = way(ddp)
            for step in range(4):
                x = torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * step + rank))
                for module in (ddp, plain):
                    module.zero_grad()
                loss(x).backward()
                plain(x).square().sum().backward()
                for mine, other in zip(net.parameters(), plain.parameters(), strict=True):
                    torch.testing.assert_close(mine.grad, other.grad)
            assert len(ddp.reducer.launch_order) == 2
            assert max(graphs) >= 8, (options, way, graphs)  # four parameters, the input, three layers


def test_the_compiler_is_not_loaded_where_nothing_is_compiled() -> None:
    """It would take seconds in every process."""
    code = "import ddpexec.ddp.wrapper, sys; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
