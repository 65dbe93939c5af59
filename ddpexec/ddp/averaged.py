"""Parameters that messages average: in one buffer, divided by the ranks there, and moved on by an outer step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.ddp.flat import move_into
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.errors import OptionError
from ddpsim.schedules.outer import OuterStep

Rates = Callable[[Sequence[nn.Parameter]], list[float]]
"""From parameters to the learning rate of each."""


class AveragedParameters:
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
        for rate, elements in self._runs():
            x, x0, u = (each[begin : begin + elements] for each in (self.whole, *self.kept))
            u.mul_(self._outer.momentum)
            if rate:
                u.add_(x0, alpha=1 / rate).sub_(x, alpha=1 / rate)
                torch.sub(x0, u, alpha=self._outer.rate * rate, out=x)
            x0.copy_(x)
            begin += elements

    def take_gradients(self) -> None:
        """Take the gradients of its parameters away."""
        for parameter in self.parameters:
            parameter.grad = None

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
