"""How many calls of our own code a gradient costs the host that trains: `python -m studies.benchmarks.calls`.

A step (forward, backward, optimizer) of 400 parameters of 64 numbers, in buckets of 16 KiB, on two ranks over gloo; the
calls of functions of `ddpexec` and `ddpsim` on the training thread are counted, a generator's every step as one, and
divided by the gradients. Unlike a time it is the same on every machine. Torch's C++ reducer makes none.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel
from ddpexec.ddp.wrapper import DistributedDataParallel
from ddpsim.bucketing import BucketCaps
from tests.ddpexec.groups import ranks

PARAMETERS, ELEMENTS = 400, 64
CAP_MB = 16 / 1024
SCHEMES = ("ddp", "naive", "flat", "priority", "priority:1KiB", "dear", "zero1", "zero2", "averaging:4")
WARM_UP, COUNTED = 4, 4
OURS = tuple(str(Path(sys.modules[name].__path__[0])) for name in ("ddpexec", "ddpsim"))


class Scales(nn.Module):
    """Layers of one parameter each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Scale() for _ in range(PARAMETERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Scale(nn.Module):
    """Multiplies by its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ELEMENTS))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Return a plain optimizer."""
    return torch.optim.SGD(parameters, lr=1e-4)


def counted(rank: int, name: str) -> Counter[str]:
    """Return by function how often it was called in `COUNTED` steps."""
    net: Any
    if name == "DistributedDataParallel":
        net = DistributedDataParallel(Scales(), bucket_cap_mb=CAP_MB)
        optimizer = sgd(net.parameters())
    else:
        net = ScheduledDataParallel(Scales(), name, sgd, caps=BucketCaps(bucket_cap_mb=CAP_MB))
        optimizer = net.optimizer
    calls: Counter[str] = Counter()

    def called(frame: Any, event: str, _: object) -> None:
        if event == "call" and (where := frame.f_code.co_filename).startswith(OURS):
            calls[f"{Path(where).stem}.{frame.f_code.co_qualname}"] += 1

    for number in range(WARM_UP + COUNTED):
        if number == WARM_UP:
            sys.setprofile(called)
        net(torch.ones(2, ELEMENTS)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    sys.setprofile(None)
    return calls


def main() -> None:
    """Print a row a scheme, and with `--functions` what is called most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemes", nargs="*", default=["DistributedDataParallel", *SCHEMES])
    parser.add_argument("--functions", type=int, default=0, help="how many functions of each to show")
    arguments = parser.parse_args()
    print(f"{'':25}calls of our code a gradient")
    for name in arguments.schemes:
        calls = ranks.run_own(2, counted, name)[0]
        gradients = COUNTED * PARAMETERS
        print(f"{name:25}{calls.total() / gradients:8.1f}", flush=True)
        for function, count in calls.most_common(arguments.functions):
            print(f"    {count / gradients:8.2f}  {function}")


if __name__ == "__main__":
    main()
