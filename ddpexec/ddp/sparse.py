"""A bucket of one sparse gradient, which is sent as it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor, nn

from ddpexec.errors import ExecutionError


class SparseBucket:
    """A bucket of one sparse gradient, which is sent as it is.

    Nothing is done to the gradient in place: those of embeddings that are added up lie in the same memory.

    Args:
        number: place in launch order.
        index: registration index.
        parameters: all parameters of the model, by registration index.
        called: what errors call the parameter of a registration index.

    Attributes:
        divisor: of the gradient; 1 leaves it whole.
        reduced: what the gradient becomes: the buffer itself, or what a communication hook made of it.
        elements: None: any number may come of a reduction.
    """

    elements: int | None = None

    def __init__(
        self,
        number: int,
        index: int,
        parameters: Sequence[nn.Parameter],
        called: Callable[[int], str],
    ) -> None:
        self.number = number
        self.indices, self.parameters = (index,), [parameters[index]]
        self.size_bytes = parameters[index].nbytes
        self._called = called
        self.eager = [False]
        self.divisor = 1
        self._gradient = self.buffer = self.reduced = torch.empty(0)

    @property
    def views(self) -> list[Tensor]:
        """The buffer: there is one gradient."""
        return [self.buffer]

    def complete(self) -> None:
        """Take the gradient, divided by the divisor."""
        grad = self.parameters[0].grad
        if grad is None or not grad.is_sparse:
            found = "has no gradient" if grad is None else "has a dense gradient"
            raise ExecutionError(
                f"{self._called(self.indices[0])} {found}, a sparse one was expected",
                remedy="use the embedding in every forward, or build it with sparse=False",
            )
        self._gradient, values = grad, grad.detach()
        self.buffer = self.reduced = values.clone() if self.divisor == 1 else values / self.divisor

    def fill(self, place: int) -> None:
        """Do nothing: a sparse gradient is taken when its bucket is complete."""

    def write_back(self, unused: Collection[int]) -> None:
        """Make the gradient what was reduced."""
        self._gradient.data = self.reduced.to(self._gradient.dtype, copy=self.reduced is not self.buffer)
        self._gradient = self.buffer = self.reduced = torch.empty(0)


def make_empty_gradient(parameter: Tensor) -> Tensor:
    """Return a sparse gradient of `parameter` that touches none of its rows."""
    rows = parameter.new_empty((1, 0), dtype=torch.int64)
    return torch.sparse_coo_tensor(rows, parameter.detach().new_empty((0, *parameter.shape[1:])), parameter.shape)
