"""A model with what one training step of it needs: a batch and a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch: the module is called as `module(*inputs)`, the loss also sees `targets`."""

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]


MakeBatch = Callable[[int, torch.device, torch.Generator | None], Batch]
Loss = Callable[[object, Batch], Tensor]


@dataclass(frozen=True, slots=True)
class TrainingModel:
    """A module, how to make a batch for it, and its loss.

    Attributes:
        name: as `ddpexec.capturing.models.build` takes it.
        module: in training mode.
        batch_size: samples a batch where nothing else is asked for.
        sample: what a sample is, for people: `image 3x224x224`, `sequence of 128 tokens`.
    """

    name: str
    module: nn.Module
    batch_size: int
    sample: str
    _make_batch: MakeBatch
    _loss: Loss

    def make_batch(
        self,
        batch_size: int | None = None,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Return random samples with random targets on `device`; `generator` must live on `device` too."""
        return self._make_batch(batch_size or self.batch_size, torch.device(device), generator)

    def loss(self, output: object, batch: Batch) -> Tensor:
        """Return the scalar loss of `output = module(*batch.inputs)`."""
        return self._loss(output, batch)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer that every measured step uses: SGD with momentum 0.9."""
        return sgd(self.module.parameters())


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Let this thread's processor take denormal numbers for zero, while a model trains on one batch again and again.

    After some twenty steps its gradients are denormal, which x86 processors multiply so slowly that a step takes four
    times as long for a while: time that training on data does not take.
    """
    flushed = torch.finfo(torch.float64).tiny / 2 == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that every measured step uses, of some parameters."""
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


def classifier(name: str, module: nn.Module, batch_size: int, shape: tuple[int, ...], classes: int) -> TrainingModel:
    """Return a training model for samples of `shape` in `classes`, with cross-entropy."""

    def make_batch(size: int, device: torch.device, generator: torch.Generator | None) -> Batch:
        samples = torch.randn((size, *shape), device=device, generator=generator)
        return Batch((samples,), (torch.randint(classes, (size,), device=device, generator=generator),))

    def loss(output: object, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(as_tensor(output), batch.targets[0])

    return TrainingModel(name, module, batch_size, f"sample of {'x'.join(map(str, shape))}", make_batch, loss)


def with_length(name: str, length: int, own: int) -> str:
    """Return what a model is called whose sequences have `length` tokens where its `own` number is another."""
    return name if length == own else f"{name}-s{length}"


def as_tensor(output: object) -> Tensor:
    """Return `output` as the one tensor it must be."""
    if not isinstance(output, Tensor):
        raise TypeError(f"the model returned {type(output).__name__}, expected one tensor")
    return output
