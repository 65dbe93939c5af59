"""Training loops that tune themselves: plain, as Lightning and Accelerate call things, and with schemes beside caps.

`torchrun --nproc-per-node 2 examples/tuning/loops.py plain` (or `lightning`, `accelerate`, `scheme`); OUT names the
folder that `ddpsim explain` reads. Neither library is needed: `Trainer` and `Accelerator` imitate what theirs call.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ddpexec
from ddpexec.ddp.scheduled_wrapper import ScheduledDataParallel

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
        self.optimizers = [self.optimizer]
        self.callback.on_train_start(self, module)
        for batch in batches():

            def closure(batch: Tensor = batch) -> Tensor:
                loss: Tensor = self.model(batch).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                return loss

            self.optimizer.step(closure)
        self.callback.on_train_end(self, module)
        return self.model


class TunedBuckets:
    """A callback that tunes: with Lightning derive it from `lightning.Callback`.

    It follows the optimizer, not batches, of which a step may have several (`accumulate_grad_batches`).
    """

    def on_train_start(self, trainer: Any, module: nn.Module) -> None:
        """Begin: the model is wrapped by now."""
        self.tuning = ddpexec.tuned(trainer.model, trainer.optimizers[0], out=OUT)
        self.tuning.__enter__()

    def on_train_end(self, trainer: Any, module: nn.Module) -> None:
        """End."""
        self.tuning.__exit__(None, None, None)

    def on_exception(self, trainer: Any, module: nn.Module, exception: BaseException) -> None:
        """The training has broken off."""
        with contextlib.suppress(type(exception)):
            self.tuning.__exit__(type(exception), exception, exception.__traceback__)


def lightning() -> nn.Module:
    """Train by a trainer with a callback."""
    return Trainer(TunedBuckets()).fit(net())


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Wraps torch's optimizer as Accelerate's does: of its class, without its hooks, by the name `optimizer`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> None:
        """Step."""
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients."""
        self.optimizer.zero_grad(set_to_none)


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


def scheme() -> nn.Module:
    """Train under our wrapper that carries out schemes: they are tried beside caps."""
    model = ScheduledDataParallel(net(), "ddp", lambda parameters: torch.optim.SGD(parameters, lr=0.01))
    with ddpexec.tuned(model, model.optimizer, out=OUT):
        for batch in batches():
            model(batch).square().mean().backward()
            model.optimizer.step()
            model.optimizer.zero_grad()
    model.complete()
    return model


LOOPS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain,
    "lightning": lightning,
    "accelerate": accelerate,
    "scheme": scheme,
}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    LOOPS[sys.argv[1]]()
    dist.destroy_process_group()
