"""The memory that messages carry: gradients in one buffer, parameters in another, averages, and chunks of gradients."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.ddp.flat import FlatBucket, move_into, views_of
from ddpexec.ddp.lanes import part_elements
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.errors import OptionError
from ddpsim.schedules.chunks import Chunks
from ddpsim.schedules.message import Message
from ddpsim.schedules.outer import OuterStep
from ddpsim.schedules.points import PointKind
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.servers import SERVERS


class GradientOwners:
    """What gradients are of: parameters, and this rank's part of some.

    Attributes:
        owners: of gradients.
    """

    owners: Sequence[nn.Parameter]

    def take_gradients(self) -> None:
        """Take the gradients away: what they are is in a buffer, or will be."""
        for parameter in self.owners:
            parameter.grad = None


class FlatGradients(GradientOwners, FlatBucket):
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
        # The module's parameters become views of one buffer, so that a gather writes them in place; this rank's
        # optimizer sees its part as one flat parameter.
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

    def own_gradients(self) -> list[Tensor]:
        """Return the gradients that this rank's optimizer works with."""
        owners = self.parameters if self.shard is None else [self.shard]
        return [each.grad for each in owners if each.grad is not None]

    def restore_gradients(self) -> None:
        """Give the parameters gradients of their own whose mean over the ranks is what was reduced."""
        # More gradients are to be added before the next sum. A sum divides again by the ranks, so a shard's part is
        # multiplied and the other ranks' parts are zero: summed over the ranks it is the same.
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


Rates = Callable[[Sequence[nn.Parameter]], list[float]]
"""From parameters to the learning rate of each."""


class AveragedParameters(GradientOwners):
    """Parameters of one message as views of a flat buffer, so that a single allreduce averages them.

    Args:
        number: that errors and traces call it by.
        indices: registration indices, in the order in which they lie.
        model: all parameters.
        outer: the step taken at each average; None takes the average itself.

    Attributes:
        kept: what the outer step remembers: the parameters after the last one, and the momentum; nothing without one.
    """

    shard: nn.Parameter | None = None

    def __init__(self, number: int, indices: tuple[int, ...], model: ModelParameters, outer: OuterStep | None) -> None:
        self.number, self.indices = number, indices
        self.parameters = [model.tensors[index] for index in indices]
        self.owners, first = self.parameters, self.parameters[0]
        self.whole = torch.zeros(sum(t.numel() for t in self.parameters), dtype=first.dtype, device=first.device)
        move_into(self.whole, self.parameters)
        self._outer = outer
        self.kept = [] if outer is None else [self.whole.clone(), torch.zeros_like(self.whole)]
        self._rates: list[float] = []

    def divide(self, ranks: int, rates: Rates) -> None:
        """Divide the parameters by the ranks, before they are summed."""
        if self._outer is not None:
            self._rates = rates(self.parameters)
        with torch.no_grad():
            self.whole.div_(ranks)

    @torch.no_grad()
    def apply_outer_step(self) -> None:
        """Move the parameters, which are the average now, to where the outer step's momentum leads from the last."""
        if self._outer is None:
            return
        begin = 0
        # SlowMo's outer step (Wang et al. 2020): u is the slow momentum, x0 the parameters after the last average, x
        # the average now. At a learning rate of zero nothing has moved, and 1/rate is left out.
        for rate, elements in self._runs():
            x, x0, u = (each[begin : begin + elements] for each in (self.whole, *self.kept))
            u.mul_(self._outer.momentum)
            if rate:
                u.add_(x0, alpha=1 / rate).sub_(x, alpha=1 / rate)
                torch.sub(x0, u, alpha=self._outer.rate * rate, out=x)
            x0.copy_(x)
            begin += elements

    def own_gradients(self) -> list[Tensor]:
        """Return the gradients that this rank's optimizer works with."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def _runs(self) -> Iterator[tuple[float, int]]:
        """Yield each learning rate with how many elements in a row have it."""
        of_parameters = zip(self._rates, self.parameters, strict=True)
        for rate, group in itertools.groupby(of_parameters, key=lambda pair: pair[0]):
            yield rate, sum(parameter.numel() for _, parameter in group)


def rates_of(groups: Sequence[dict[str, Any]]) -> Rates:
    """Return what finds the learning rate of a parameter among an optimizer's groups; 1 where it has no groups.

    Raises:
        OptionError: when it is asked, for an optimizer without one.
    """

    def found(parameters: Sequence[nn.Parameter]) -> list[float]:
        if not groups:
            return [1.0] * len(parameters)
        known = {tensor: group["lr"] for group in groups if "lr" in group for tensor in group["params"]}
        if not known.keys() >= set(parameters):
            what = "the optimizer has no learning rate `lr`, which SlowMo's outer step and servers go by"
            raise OptionError(what, place="scheme", remedy="use one that has, such as SGD, or another scheme")
        return [float(known[parameter]) for parameter in parameters]

    return found


class ChunkedBucket:
    """What a rank has not sent of a bucket, the norms of its chunks, and the chunks that are summed.

    Where momentum is corrected it has the rank's velocity too, which is forgotten where it is sent.

    Args:
        flat: the bucket's gradients.
        chunks: how they are cut and how many are summed.
    """

    def __init__(self, flat: FlatGradients, chunks: Chunks) -> None:
        self._buffer = flat.buffer
        self._elements, self._momentum = chunks.elements, chunks.momentum
        count = -(-self._buffer.numel() // chunks.elements)
        self._left = self._buffer.new_zeros(count * chunks.elements)
        self._velocity = torch.zeros_like(self._left) if self._momentum else None
        self.norms = torch.zeros(count, dtype=torch.float32, device=self._buffer.device)
        self._sizes = torch.empty_like(self._rows)
        self._chosen = torch.zeros(0, dtype=torch.int64)
        self._values = self._buffer.new_zeros(chunks.chosen, chunks.elements)
        # All of a bucket are no more than the bucket, whatever its last chunk is padded to.
        self.values = self._values.view(-1)[: min(self._values.numel(), self._buffer.numel())]

    def measure(self) -> None:
        """Add the gradients, or the velocity, to what was left, and take the norm of each chunk."""
        elements = self._buffer.numel()
        if self._velocity is None:
            self._left[:elements].add_(self._buffer)
        else:
            self._velocity[:elements].mul_(self._momentum).add_(self._buffer)
            self._left.add_(self._velocity)
        torch.sum(torch.abs(self._rows, out=self._sizes), dim=1, out=self.norms)

    def choose(self) -> None:
        """Take the chunks of the largest norms, which are summed over the ranks now, out of what is left."""
        # Stable, for the norms are the same sums on every rank: all must choose the same chunks, ties included.
        order = torch.argsort(self.norms, descending=True, stable=True)
        self._chosen = torch.sort(order[: len(self._values)]).values
        torch.index_select(self._rows, 0, self._chosen, out=self._values)
        self._rows[self._chosen] = 0
        if self._velocity is not None:
            self._velocity.view(-1, self._elements)[self._chosen] = 0

    def write_sums(self) -> None:
        """Let the bucket's gradients be the sums of the chosen chunks, and zero elsewhere."""
        whole = torch.zeros_like(self._left)
        whole.view(-1, self._elements)[self._chosen] = self._values
        self._buffer.copy_(whole[: self._buffer.numel()])

    @property
    def kept(self) -> list[Tensor]:
        """What this rank has not sent yet."""
        return [self._left] if self._velocity is None else [self._left, self._velocity]

    @property
    def _rows(self) -> Tensor:
        return self._left.view(-1, self._elements)
