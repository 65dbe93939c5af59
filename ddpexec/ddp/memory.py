"""The memory that messages carry: gradients of some parameters in one buffer, the parameters in another."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from ddpexec.ddp.flat import FlatBucket, move_into, views_of
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.rings import part_elements
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import PointKind
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.servers import SERVERS


class FlatGradients(FlatBucket):
    """A bucket's gradients in one buffer that messages carry, divisible by the ranks.

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
        filled: whether all gradients lie in the buffer, and messages may carry it.
        every: in every how-manieth iteration gradients are summed.
        numbers: of the messages that carry it.
        untouched: registration indices of those that no rank used.
        weights: the buffer of the parameters, where they are sharded.
        shard: this rank's part of it, which its optimizer knows.
        owners: of gradients: its parameters, and the shard.
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
        tensors = [model.tensors[index] for index in indices]
        elements = sum(tensor.numel() for tensor in tensors)
        part = part_elements(elements, (dtype or tensors[0].dtype).itemsize, ranks)
        super().__init__(
            number,
            indices,
            model.tensors,
            as_view=late and len(indices) == 1 and not sharded and dtype is None,
            batched=False,
            dtype=dtype,
            called=lambda index: model.describe(index, rank),
            least=part * ranks,
        )
        self._own = slice(rank * part, (rank + 1) * part)
        self.late, self.filled, self.divisor, self.every = late, False, ranks, 1
        # Those that are filled one by one; of a late one that is alone all that there is.
        self._places = [0] if late and len(indices) == 1 else [place for place, eager in enumerate(self.eager) if eager]
        self.numbers: tuple[int, ...] = ()
        self.untouched: Collection[int] = ()
        self.weights: Tensor | None = None
        self.shard: nn.Parameter | None = None
        if sharded:
            self.weights = torch.zeros_like(self.whole)
            move_into(self.weights[: self.elements], self.parameters)
            self.shard = nn.Parameter(self.weights[self._own])
        self.owners = self.parameters if self.shard is None else [*self.parameters, self.shard]

    def complete(self) -> None:
        """Copy in the gradients that are still to be, divided by the ranks; once, however many messages carry them."""
        if self.filled:
            return
        if self.late:
            for place in self._places:
                self.fill(place)
        if len(self._places) < len(self.indices):
            super().complete()
        self.filled = True

    def complete_locally(self) -> None:
        """Copy in the gradients that were not copied as they came, whole."""
        ranks, self.divisor = self.divisor, 1
        super().complete()
        self.divisor = ranks

    def give_gradients(self) -> None:
        """Give the parameters what lies in the buffer, by views of it; none to those that no rank used."""
        if self.shard is not None:
            self.shard.grad = self.whole[self._own]
            return
        for index, parameter, view in zip(self.indices, self.parameters, self.views, strict=True):
            parameter.grad = None if index in self.untouched else view

    def take_gradients(self) -> None:
        """Take the gradients of its parameters away: what they are is in the buffer, or will be."""
        for parameter in self.owners:
            parameter.grad = None

    def own_gradients(self) -> list[Tensor]:
        """Return the gradients that this rank's optimizer works with."""
        owners = self.parameters if self.shard is None else [self.shard]
        return [each.grad for each in owners if each.grad is not None]

    def restore_gradients(self) -> None:
        """Give the parameters gradients of their own whose mean over the ranks is what was reduced."""
        if self.shard is not None:
            own = self.whole[self._own] * self.divisor
            self.whole.zero_()
            self.whole[self._own] = own
            self.shard.grad = None
        for index, parameter, view in zip(self.indices, self.parameters, self.views, strict=True):
            parameter.grad = None if index in self.untouched else view.clone()

    def own_part(self, values: Sequence[Tensor]) -> Tensor:
        """Return this rank's part of what each parameter has one of, in its shape."""
        whole = torch.zeros_like(self.whole, dtype=values[0].dtype)
        for view, value in zip(views_of(whole[: self.elements], self.parameters), values, strict=True):
            view.copy_(value)
        return whole[self._own].clone()


def keeps_parts(schedule: Schedule) -> bool:
    """Whether a rank updates its part of the parameters only, so that messages gather them."""
    gathers = any(message.group != SERVERS and not gradients_in(message) for message in schedule)
    return schedule.update != "elsewhere" and (schedule.sharding.optimizer > 1 or gathers)


def gradients_in(message: Message) -> bool:
    """Whether a message carries gradients: it sums them, or gathers what an optimizer waits for."""
    return message.op.reduces or any(point.kind is PointKind.OPTIMIZER for point in message.blocks)
