"""What is updated together: parameters, or this rank's part of some, and an instance of the user's optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from ddpexec.schedules.memory import FlatGradients

MakeOptimizer = Callable[[list[nn.Parameter]], Any]
"""The user's: from parameters to an optimizer of them, such as `lambda p: torch.optim.AdamW(p, lr=1e-3)`."""


class ParameterUpdate:
    """An update is an optimizer instance, and what it updates together.

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
        """Whether a step was asked for and not carried out."""
        return self._asked is not None

    def ask(self) -> None:
        """Let the step be carried out later, as it would be now."""
        self._asked = [hyperparameters(group) for group in self.groups]

    def carry_out(self) -> None:
        """Carry the step out as it was asked for."""
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
    found = {tensor: state for update in old for tensor, state in getattr(update.optimizer, "state", {}).items()}
    for update in new:
        if old and len(old[0].groups) == len(update.groups):
            update.set_groups(map(hyperparameters, old[0].groups))
        for flat in update.flats:
            if flat.shard is None:
                update_state = getattr(update.optimizer, "state", {})
                update_state |= {tensor: found[tensor] for tensor in flat.parameters if tensor in found}
            elif any(tensor in found for tensor in flat.parameters):
                update.optimizer.state[flat.shard] = _divided(flat, [found[tensor] for tensor in flat.parameters])


def _divided(flat: FlatGradients, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
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
