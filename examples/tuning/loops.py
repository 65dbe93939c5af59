"""Training loops whose buckets tune themselves: a plain one, and two that call things as Lightning and Accelerate do.

`torchrun --nproc-per-node 2 examples/tuning/loops.py plain` (or `lightning`, `accelerate`); OUT names the folder that
`ddpsim explain` reads. Neither library is needed: `Trainer` and `Accelerator` imitate the calls that theirs make.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ddpexec

WIDTH, LAYERS, BATCH = 64, 4, 8
STEPS = int(os.environ.get("STEPS", "120"))
OUT = os.environ.get("OUT", "tuning")


def net() -> nn.Module:
    """Return what is trained."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)))


def batches() -> Iterator[Tensor]:
    """Yield this rank's batches."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        yield torch.randn(BATCH, WIDTH, generator=generator)


def plain() -> nn.Module:
    """Train in a plain loop."""
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ddpexec.tuned(model, optimizer, out=OUT):
        for batch in batches():
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return model


class Trainer:
    """Calls as Lightning's does: callbacks around each step, and a closure with backward in it for the optimizer."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def fit(self, module: nn.Module) -> nn.Module:
        """Train."""
        self.model = DistributedDataParallel(module)
        self.optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        self.callback.on_train_start(self)
        for batch in batches():

            def closure(batch: Tensor = batch) -> Tensor:
                loss: Tensor = self.model(batch).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                return loss

            self.optimizer.step(closure)
            self.callback.on_train_batch_end(self)
        self.callback.on_train_end(self)
        return self.model


class TunedBuckets:
    """A callback that tunes: with Lightning derive it from `lightning.Callback`, whose hooks take more arguments."""

    def on_train_start(self, trainer: Trainer) -> None:
        """Begin."""
        self.tuner = ddpexec.Tuner(trainer.model, out=OUT)

    def on_train_batch_end(self, trainer: Trainer) -> None:
        """A step is over."""
        self.tuner.step()

    def on_train_end(self, trainer: Trainer) -> None:
        """End."""
        self.tuner.close()


def lightning() -> nn.Module:
    """Train by a trainer with a callback."""
    return Trainer(TunedBuckets()).fit(net())


class AcceleratedOptimizer:
    """Wraps torch's optimizer as Accelerate's does, by the name `optimizer`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        """Step."""
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Clear gradients."""
        self.optimizer.zero_grad()


class Accelerator:
    """Prepares and runs backward as Accelerate's does."""

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, AcceleratedOptimizer]:
        """Return the model under DDP and the optimizer wrapped."""
        return DistributedDataParallel(model), AcceleratedOptimizer(optimizer)

    def backward(self, loss: Tensor) -> None:
        """Run backward."""
        loss.backward()


def accelerate() -> nn.Module:
    """Train by an accelerator."""
    accelerator, module = Accelerator(), net()
    model, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.01))
    with ddpexec.tuned(model, optimizer, out=OUT):
        for batch in batches():
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    return model


LOOPS: dict[str, Callable[[], nn.Module]] = {"plain": plain, "lightning": lightning, "accelerate": accelerate}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    LOOPS[sys.argv[1]]()
    dist.destroy_process_group()
