"""What is updated together: parameters, or this rank's part of some, and an instance of the user's optimizer.

Gradients are clipped by their joint norm, wherever a schedule keeps them (`clipped`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.ddp.memory import FlatGradients
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator
from ddpexec.groups.timeouts import wait_within
from ddpsim.schedules.schedule import Schedule


def clip_gradients(
    gradients: Sequence[Tensor], max_norm: float, schedule: Schedule, communicator: Communicator
) -> Tensor:
    """Scale gradients in place so that their joint 2-norm is at most `max_norm`; return what it was.

    Args:
        gradients: all of them, or this rank's part where the optimizer is sharded: ranks then sum their squares.
        max_norm: in the gradients' own unit.
        schedule: in force.
        communicator: of the ranks, each of which calls this.
    """
    squares = torch.stack([gradient.norm() ** 2 for gradient in gradients]).sum()
    if schedule.sharding.optimizer > 1 and communicator.world_size > 1 and not communicator.noop:
        with name_lost_ranks(communicator, "the sum of gradients' norms"):
            wait_within(communicator.all_reduce(squares, 0), communicator.timeout)
    norm = squares.sqrt()
    torch._foreach_mul_(list(gradients), (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm


MakeOptimizer = Callable[[list[nn.Parameter]], Any]
"""The user's: from parameters to an optimizer of them, such as `lambda p: torch.optim.AdamW(p, lr=1e-3)`."""


def check_no_momentum(make: MakeOptimizer) -> None:
    """Refuse an optimizer with a momentum of its own, where the scheme corrects it.

    Raises:
        OptionError: it would count twice.
    """
    optimizer = make([nn.Parameter(torch.ones(1))])
    if any(group.get("momentum") or "betas" in group for group in getattr(optimizer, "param_groups", ())):
        what = "the optimizer has a momentum of its own, which would count twice"
        raise OptionError(what, place="scheme 'gradientflow', momentum", remedy="use SGD without momentum")


class ParameterUpdate:
    """An optimizer instance, and what it updates together.

    A step that was asked for and not carried out keeps the learning rate, and whatever else the user may change in
    `param_groups`, of the moment it was asked for.

    Args:
        flats: whose parameters, or this rank's part of which, it updates.
        parameters: those themselves.
        make: makes the instance.
    """

    def __init__(self, flats: Sequence[FlatGradients], parameters: Sequence[nn.Parameter], make: MakeOptimizer) -> None:
        self.flats, self.optimizer = flats, make(list(parameters))
        self.indices = tuple(index for flat in flats for index in flat.indices)
        self._asked: list[dict[str, Any]] | None = None

    @property
    def places(self) -> dict[Tensor, int]:
        """The registration index of each parameter."""
        return {tensor: i for flat in self.flats for i, tensor in zip(flat.indices, flat.parameters, strict=True)}

    @property
    def pending(self) -> bool:
        """Whether a step was requested and not carried out yet."""
        return self._asked is not None

    def ask(self) -> None:
        """Let the step be carried out later, as it would be now."""
        self._asked = [hyperparameters(group) for group in self.groups]

    def carry_out(self) -> None:
        """Carry out the requested step with the hyperparameters of the moment of its request."""
        now = [hyperparameters(group) for group in self.groups]
        self.set_groups(self._asked or ())
        self._asked = None
        self.optimizer.step()
        self.set_groups(now)

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups."""
        return getattr(self.optimizer, "param_groups", [])

    def set_groups(self, values: Iterable[dict[str, Any]]) -> None:
        """Give each parameter group these values."""
        for group, value in zip(self.groups, values, strict=False):
            group.update(value)


def move_state(old: Sequence[ParameterUpdate], new: Sequence[ParameterUpdate]) -> None:
    """Give `new` instances the state of `old` ones of whole parameters, and their hyperparameters; parts are cut out.

    Only state whose tensors have their parameter's shape can be divided, or such as counts steps.
    """
    states = {tensor: state for update in old for tensor, state in getattr(update.optimizer, "state", {}).items()}
    for update in new:
        if old and len(old[0].groups) == len(update.groups):
            update.set_groups(map(hyperparameters, old[0].groups))
        for flat in update.flats:
            if flat.shard is None:
                update_state = getattr(update.optimizer, "state", {})
                update_state |= {tensor: states[tensor] for tensor in flat.parameters if tensor in states}
            elif any(tensor in states for tensor in flat.parameters):
                update.optimizer.state[flat.shard] = _divide_state(flat, [states[tensor] for tensor in flat.parameters])


def _divide_state(flat: FlatGradients, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of this rank's part of `flat`, whose parameters have `states`."""
    divided: dict[str, Any] = {}
    for key, value in states[0].items():
        values = [state[key] for state in states]
        shapes = [getattr(each, "shape", None) for each in values]
        if key != "step" and shapes == [tensor.shape for tensor in flat.parameters]:
            divided[key] = flat.own_part(values)
        else:
            divided[key] = value.clone() if isinstance(value, Tensor) else value
    return divided


def hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """Return all of a parameter group but its parameters."""
    return {name: value for name, value in group.items() if name != "params"}
