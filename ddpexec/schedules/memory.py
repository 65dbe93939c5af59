"""The memory that messages carry: gradients of some parameters in one buffer, and the parameters in another."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from ddpexec.ddp.flat import FlatBucket, lie_in, views_of
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.schedules.rings import part_elements
from ddpsim.bucketing.assign import Bucket


class FlatGradients:
    """A flat holds the gradients of parameters that messages carry together, divisible by the ranks.

    Args:
        number: that errors and traces call it by.
        indices: registration indices, in the order in which they lie.
        model: all parameters.
        ranks: each of which has a part.
        rank: this one.
        sharded: whether the parameters lie in a buffer too, of which this rank updates its part.
        late: whether gradients are taken after backward. A single one is then given back as a view of the buffer:
            what divides it by the ranks is the one pass over it.
        dtype: in which gradients come and are sent; None is their parameters'.

    Attributes:
        eager: by registration index, the places of gradients that are copied in one by one, as they come.
        filled: whether all gradients lie in the buffer, and messages may carry it.
        every: in every how-manieth iteration gradients are summed.
        numbers: of the messages that carry it.
        untouched: registration indices of those that no rank used.
    """

    def __init__(
        self,
        number: int,
        indices: tuple[int, ...],
        model: ModelParameters,
        ranks: int,
        rank: int,
        *,
        sharded: bool,
        late: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.number, self.indices = number, indices
        self.tensors = [model.tensors[index] for index in indices]
        first = self.tensors[0]
        elements = sum(tensor.numel() for tensor in self.tensors)
        part = part_elements(elements, (dtype or first.dtype).itemsize, ranks)
        size = sum(model.policy[index].size_bytes for index in indices)
        self.bucket = FlatBucket(
            number,
            Bucket(indices, size, None),
            model.tensors,
            as_view=late and len(indices) == 1 and not sharded and dtype is None,
            batched=False,
            dtype=dtype,
            called=lambda index: model.called(index, rank),
            least=part * ranks,
        )
        self._own = slice(rank * part, (rank + 1) * part)
        self.eager = {index: place for place, index in enumerate(indices) if self.bucket.eager[place] and not late}
        self.filled, self._late = False, late
        self.summed_over, self.every = ranks, 1
        self.numbers: tuple[int, ...] = ()
        self.untouched: Collection[int] = ()
        self.parameters: Tensor | None = None
        self.shard: nn.Parameter | None = None
        if sharded:
            self._move_parameters()

    @property
    def summed_over(self) -> int:
        """Ranks, by which gradients are divided."""
        return self.bucket.divisor

    @summed_over.setter
    def summed_over(self, ranks: int) -> None:
        self.bucket.divisor = ranks

    @property
    def gradients(self) -> Tensor:
        """All gradients, padded."""
        return self.bucket.whole

    def complete(self) -> None:
        """Copy in the gradients that are still to be, divided by the ranks; once, however many messages carry them."""
        if not self.filled:
            if self._late:
                for place, eager in enumerate(self.bucket.eager):
                    if eager:
                        self.bucket.fill(place)
            self.bucket.complete()
            self.filled = True

    def complete_locally(self) -> None:
        """Copy in the gradients that were not copied as they came, whole."""
        ranks, self.summed_over = self.summed_over, 1
        self.bucket.complete()
        self.summed_over = ranks

    def give_gradients(self) -> None:
        """Give the parameters what lies in the buffer, by views of it; none to those that no rank used."""
        if self.shard is not None:
            self.shard.grad = self.gradients[self._own]
            return
        for index, tensor, view in zip(self.indices, self.tensors, self.bucket.views, strict=True):
            tensor.grad = None if index in self.untouched else view

    def take_gradients(self) -> None:
        """Take the gradients of its parameters away: what they are is in the buffer, or will be."""
        for tensor in self.tensors:
            tensor.grad = None
        if self.shard is not None:
            self.shard.grad = None

    def own_gradients(self) -> list[Tensor]:
        """Return the gradients that this rank's optimizer works with."""
        owners = self.tensors if self.shard is None else [self.shard]
        return [tensor.grad for tensor in owners if tensor.grad is not None]

    def restore_gradients(self, ranks: int) -> None:
        """Give the parameters gradients of their own whose mean over the ranks is what was reduced."""
        if self.shard is not None:
            own = self.gradients[self._own] * ranks
            self.gradients.zero_()
            self.gradients[self._own] = own
            self.shard.grad = None
        for index, tensor, view in zip(self.indices, self.tensors, self.bucket.views, strict=True):
            tensor.grad = None if index in self.untouched else view.clone()

    def write_back(self) -> None:
        """Copy what lies in the buffer to the parameters' own gradients."""
        self.bucket.write_back(self.untouched)

    def own_part(self, values: Sequence[Tensor]) -> Tensor:
        """Return this rank's part of what each parameter has one of, in its shape."""
        whole = torch.zeros_like(self.gradients, dtype=values[0].dtype)
        for view, value in zip(views_of(whole[: self.bucket.buffer.numel()], self.tensors), values, strict=True):
            view.copy_(value)
        return whole[self._own].clone()

    def _move_parameters(self) -> None:
        """Let the parameters lie in one buffer, and this rank's part of it be the one that its optimizer knows."""
        whole = torch.zeros_like(self.gradients)
        lie_in(whole[: self.bucket.elements], self.tensors)
        self.parameters, self.shard = whole, nn.Parameter(whole[self._own])
