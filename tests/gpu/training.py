"""Small models trained alike by our DDP, by torch's and by neither, on whichever device."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpexec.timing.clock import CudaClock, HostClock
from ddpexec.timing.observe import Observer
from tests.gpu.places import goes_ahead

WARM_UP, STEPS = 3, 20
CAP_MB = 0.1
WIDTH, SAMPLES = 128, 16


class Net(nn.Module):
    """Several buckets' worth of layers, buffers that are broadcast, and a branch that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4)))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.branch = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, branch: bool = True) -> Tensor:
        x = self.norm(self.layers(x))
        return self.branch(x) if branch else x


@dataclass
class Training:
    """A model, wrapped or not, its optimizer and its batch.

    Attributes:
        kind: `ddpexec`, `torch`, or `none` for the model alone.
        options: of the wrapper.
        observed: whether our DDP takes moments on the device's clock.
        branch: whether the model's branch is used.
        gradients: of the last step.
    """

    kind: str
    device: torch.device
    rank: int
    options: dict[str, Any]
    observed: bool = False
    branch: bool = True
    gradients: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        net = Net().to(self.device)
        self.parameters = list(net.parameters())
        self.module = self._wrapped(net)
        self._optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        self._batch = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(self.rank)).to(self.device)

    def step(self) -> None:
        """Train once."""
        self.module(self._batch, self.branch).square().mean().backward()
        self.gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters]
        self._optimizer.step()
        self._optimizer.zero_grad()

    def goes_ahead(self) -> bool:
        """Return whether a step leaves the host free; on a CPU there is nobody to wait for."""
        return self.device.type == "cpu" or goes_ahead(self.step, self.device, time.perf_counter)

    def state(self) -> list[Tensor]:
        """Return parameters and the last gradients on the CPU."""
        return [tensor.detach().cpu() for tensor in (*self.parameters, *self.gradients)]

    def _wrapped(self, net: nn.Module) -> nn.Module:
        if self.kind == "none":
            return net
        if self.kind == "torch":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                return nn.parallel.DistributedDataParallel(net, bucket_cap_mb=CAP_MB, **self.options)
        clock = CudaClock(self.device) if self.device.type == "cuda" else HostClock()
        observer = Observer(clock) if self.observed else None
        return DistributedDataParallel(net, bucket_cap_mb=CAP_MB, observer=observer, **self.options)


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """Return whether two states agree bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
