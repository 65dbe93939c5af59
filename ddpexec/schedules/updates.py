"""The optimizer of a schedule: instances of the user's, each of some parameters, that act when their turn comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.errors import OptionError
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
    def pending(self) -> bool:
        """Whether a step was asked for and not carried out."""
        return self._asked is not None

    def ask(self) -> None:
        """Let the step be carried out later, as it would be now."""
        self._asked = [_hyperparameters(group) for group in self._groups]

    def carry_out(self) -> None:
        """Carry the step out as it was asked for."""
        now = [_hyperparameters(group) for group in self._groups]
        self._set(self._asked or ())
        self._asked = None
        self.optimizer.step()
        self._set(now)

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return getattr(self.optimizer, "param_groups", [])

    def _set(self, values: Iterable[dict[str, Any]]) -> None:
        for group, value in zip(self._groups, values, strict=False):
            group.update(value)


class ScheduledOptimizer(torch.optim.Optimizer):
    """What a user steps: it asks the schedule for a step of all its instances, whose parameter groups are its own.

    A learning rate scheduler takes it as any optimizer. `zero_grad` takes away what has come since the last step; what
    a step that is still to be carried out needs is not among it.

    Args:
        updates: in the order of the schedule.
        step: carries a step out, or notes it.
        complete: carries out what was noted.
        forget: gives up gradients that no step was asked for.
    """

    def __init__(
        self,
        updates: Sequence[ParameterUpdate],
        step: Callable[[], None],
        complete: Callable[[], None],
        forget: Callable[[], None],
    ) -> None:
        self._step, self._complete, self._forget = step, complete, forget
        # Where others are stepped than those a user holds: his, each with one of them, and what was last seen of his.
        self._followed: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []
        self._seen: list[dict[str, Any]] = []
        groups = [group for update in updates for group in update._groups]
        if groups:
            super().__init__([{"params": group["params"]} for group in groups], {})
        self.follow(updates)

    def follow(self, updates: Sequence[ParameterUpdate]) -> None:
        """Step `updates` from now on."""
        self.updates, self._followed = updates, []
        self.param_groups = [group for update in updates for group in update._groups]

    def follow_with_groups(self, updates: Sequence[ParameterUpdate]) -> None:
        """Step `updates` from now on, by the parameter groups that there are: a learning rate scheduler holds them.

        Raises:
            OptionError: parameters that are to be updated together, of groups that differ; nothing has changed then.
        """
        self._take_changes()
        own = {tensor: group for group in self.param_groups for tensor in group["params"]}
        former = {tensor: group for update in self.updates for group in update._groups for tensor in group["params"]}
        groups = [group for update in updates for group in update._groups if group["params"]]
        followed = [(_alike(own[tensor] for tensor in group["params"]), group) for group in groups]
        values = [_hyperparameters(_alike(former[tensor] for tensor in group["params"])[0]) for group in groups]
        for group, value in zip(groups, values, strict=True):
            group.update(value)
        self.updates, self._followed = updates, followed
        self._note_seen()

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Carry out a step, or note it where the schedule has the next forward do that.

        Raises:
            OptionError: a closure, which would compute gradients anew.
        """
        if closure is not None:
            raise OptionError("a schedule's optimizer takes no closure", remedy="use an optimizer that needs none")
        self._take_changes()
        self._step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters."""
        self._forget()
        for update in self.updates:
            for flat in update.flats:
                had = () if set_to_none else [tensor for tensor in flat.tensors if tensor.grad is not None]
                flat.take_gradients()
                for tensor in had:
                    tensor.grad = torch.zeros_like(tensor)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parameters as one optimizer's of the whole model has it, after pending steps.

        Raises:
            OptionError: the state is sharded; each rank has its part.
        """
        self._complete()
        self._take_changes()
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        for update in self.updates:
            if any(flat.shard is not None for flat in update.flats):
                what, remedy = "the optimizer's state is sharded", "save `shard_state_dict()` on each rank"
                raise OptionError(what, remedy=remedy)
            places = {tensor: i for flat in update.flats for i, tensor in zip(flat.indices, flat.tensors, strict=True)}
            for group in update._groups:
                _add_group(groups, group, sorted(places[tensor] for tensor in group["params"]))
            state |= {places[tensor]: values for tensor, values in update.optimizer.state.items()}
        for group in groups:
            group["params"] = sorted(group["params"])
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of a whole model's optimizer, as `state_dict` returns it."""
        self._complete()
        for update in self.updates:
            tensors = {tensor: i for flat in update.flats for i, tensor in zip(flat.indices, flat.tensors, strict=True)}
            for group in update._groups:
                for tensor in group["params"]:
                    index = tensors[tensor]
                    if index in state_dict["state"]:
                        update.optimizer.state[tensor] = _copied(state_dict["state"][index], tensor)
                saved = next(
                    each for each in state_dict["param_groups"] if tensors[group["params"][0]] in each["params"]
                )
                group.update(_hyperparameters(saved))
        for own, group in self._followed:
            for each in own:
                each.update(_hyperparameters(group))
        self._note_seen()

    def shard_state_dict(self) -> list[dict[str, Any]]:
        """Return the state dict of each instance on this rank, after pending steps."""
        self._complete()
        return [update.optimizer.state_dict() for update in self.updates]

    def load_shard_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Take what `shard_state_dict` returned on this rank."""
        self._complete()
        for update, state in zip(self.updates, states, strict=True):
            update.optimizer.load_state_dict(state)
        self.follow(self.updates)  # torch's optimizers have other parameter groups now

    def _take_changes(self) -> None:
        """Give the groups that are stepped what the user has changed of those that he holds since it was last seen.

        Raises:
            OptionError: groups that now differ, whose parameters are updated together.
        """
        for (own, group), before in zip(self._followed, self._seen, strict=True):
            values = _hyperparameters(_alike(own)[0])
            group.update(
                {
                    name: value
                    for name, value in values.items()
                    if name not in before or not (before[name] is value or before[name] == value)
                }
            )
        self._note_seen()

    def _note_seen(self) -> None:
        self._seen = [_hyperparameters(own[0]) for own, _ in self._followed]


def move_state(old: Sequence[ParameterUpdate], new: Sequence[ParameterUpdate]) -> None:
    """Give `new` instances the state of `old` ones of whole parameters, and their hyperparameters; parts are cut out.

    Only state whose tensors have their parameter's shape can be divided, or such as counts steps.
    """
    found = {tensor: state for update in old for tensor, state in getattr(update.optimizer, "state", {}).items()}
    for update in new:
        if old and len(old[0]._groups) == len(update._groups):
            update._set(map(_hyperparameters, old[0]._groups))
        for flat in update.flats:
            if flat.shard is None:
                update_state = getattr(update.optimizer, "state", {})
                update_state |= {tensor: found[tensor] for tensor in flat.tensors if tensor in found}
            elif any(tensor in found for tensor in flat.tensors):
                update.optimizer.state[flat.shard] = _divided(flat, [found[tensor] for tensor in flat.tensors])


def _divided(flat: FlatGradients, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of this rank's part of `flat`, whose parameters have `states`."""
    divided: dict[str, Any] = {}
    for key, value in states[0].items():
        values = [state[key] for state in states]
        shapes = [getattr(each, "shape", None) for each in values]
        if key != "step" and shapes == [tensor.shape for tensor in flat.tensors]:
            divided[key] = flat.own_part(values)
        else:
            divided[key] = value.clone() if isinstance(value, Tensor) else value
    return divided


def _alike(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each of some groups once.

    Raises:
        OptionError: values of them differ, of parameters that are updated together.
    """
    first, *others = {id(group): group for group in groups}.values()
    for other in others:
        for name, value in _hyperparameters(first).items():
            if other.get(name) != value:
                what = f"{name!r} is {value!r} and {other.get(name)!r} in groups that are updated together"
                raise OptionError(what, place="optimizer", remedy="give all groups the same value")
    return [first, *others]


def _hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _add_group(groups: list[dict[str, Any]], group: dict[str, Any], indices: list[int]) -> None:
    values = _hyperparameters(group)
    for known in groups:
        if _hyperparameters(known) == values:
            known["params"] += indices
            return
    groups.append({**values, "params": indices})


def _copied(state: dict[str, Any], tensor: Tensor) -> dict[str, Any]:
    return {
        key: value.detach().clone().to(tensor.device) if isinstance(value, Tensor) and value.dim() else
        value.clone() if isinstance(value, Tensor) else value
        for key, value in state.items()
    }  # fmt: skip
