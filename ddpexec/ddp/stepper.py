"""The optimizer of a schedule: when its updates are carried out, which gradients each takes, and what a user steps.

`UpdateScheduler` belongs to the schedule, `ScheduledOptimizer` is what the user holds: its `step` may only mark updates
as pending, to be carried out when forward next uses the parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ddpexec.ddp.memory import FlatGradients, keeps_parts
from ddpexec.ddp.messages import CarriedMessages
from ddpexec.ddp.updates import MakeOptimizer, ParameterUpdate, hyperparameters
from ddpexec.errors import ExecutionError, OptionError
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import LaunchQueue
from ddpsim.schedules.points import Point, PointKind, points


class UpdateScheduler:
    """Carries updates out: at the optimizer's step, or before what they update is next used.

    Args:
        carried: the schedule's messages, some of which an update lets go, and others of which it needs.
        queue: tells which those are.
        make_optimizer: makes an instance of some parameters.

    Attributes:
        observer: takes the moments of each update that is carried out before a use; None takes none.
        pending: registration indices whose step was asked for and not carried out.
        unstepped: whether gradients were sent that must be stepped by before others are.
        had: registration indices whose gradients were taken from their parameters since they were last zeroed.
    """

    def __init__(
        self,
        carried: CarriedMessages,
        queue: LaunchQueue[Point],
        make_optimizer: MakeOptimizer,
    ) -> None:
        self._schedule, self._launcher = carried.schedule, carried.launcher
        self._queue = queue
        self.observer: Observer | None = None
        self.updates = _updates(carried, make_optimizer)
        self._update = {index: update for update in self.updates for index in update.indices}
        self._before = {update: points(PointKind.OPTIMIZER, update.indices) for update in self.updates}
        self._after = {update: points(PointKind.UPDATED, update.indices) for update in self.updates}
        # Those whose gradients are the schedule's own once they are in its buffers, and nobody else's.
        late = carried.schedule.update != "after_backward"
        self._taken = {flat for flat in carried.flats if late or flat.shard is not None}
        self.pending: set[int] = set()
        self.had: set[int] = set()
        self._reduced: set[int] = set()
        self._zeroed: set[int] = set()
        self._stepped: set[ParameterUpdate] = set()
        self.unstepped = self._local = False

    # ---- gradients come

    def begin(self, *, local: bool, first: bool) -> None:
        """Begin an iteration: gradients that were reduced and not used are given back, for more to be added to them.

        Args:
            local: whether nothing is sent in it.
            first: whether it is the first of all.

        Raises:
            ExecutionError: gradients were sent to which none can be added, and no step was taken.
        """
        if self.unstepped and not local:
            what = f"gradients of scheme {self._schedule.scheme} were sent, and no step was taken"
            raise ExecutionError(what, remedy="leave them out by `no_sync`, give `every`, or step after each backward")
        self._local = local
        for update in self.updates:
            if not update.pending and self._reduced.intersection(update.indices):
                self._await_gradients(update, own=True)
                self._reduced.difference_update(update.indices)
                for flat in update.flats:
                    if flat in self._taken:
                        flat.restore_gradients()
        if local:
            return
        if not first and self._schedule.update == "after_backward":
            for update in self.updates:
                # Messages may wait for this update, gathers of what it updates for one, and on other ranks they are
                # launched: an update that is never marked would leave both waiting.
                if update not in self._stepped:  # what waits for it must not wait for ever
                    self._launcher.launch(self._queue.mark_passed(*self._after[update]))
        self._stepped.clear()

    def note_reduced(self, flats: Iterable[FlatGradients]) -> None:
        """Note that gradients of `flats` are reduced, or on their way."""
        for flat in flats:
            if self._schedule.update != "elsewhere":
                self._reduced.update(flat.indices)
            if flat in self._taken:
                if flat.shard is None:
                    self.had.update(set(flat.indices).difference(flat.untouched))
                flat.take_gradients()

    def zero(self, *, to_none: bool) -> None:
        """Reset gradients: to zeros those that one optimizer of the whole model would still have, unless `to_none`.

        Where an update is still to be carried out, that takes its gradients away again: then they become zeros anew.
        """
        self.forget()
        for update in self.updates:
            pending = update.pending
            for flat in update.flats:
                pairs = list(zip(flat.indices, flat.parameters, strict=True))
                zeroed = set() if to_none else {i for i, each in pairs if each.grad is not None or i in self.had}
                for parameter in flat.owners:
                    parameter.grad = None
                if zeroed:
                    _give_zeros(flat, zeroed)
                self.had.difference_update(flat.indices)
                self._zeroed.difference_update(flat.indices)
                if pending:
                    self._zeroed |= zeroed

    def forget(self) -> None:
        """Drop gradients that were reduced and for which no step was called."""
        self.unstepped = False
        for update in self.updates:
            if not update.pending:
                self._await_gradients(update, own=False)
                self._reduced.difference_update(update.indices)

    def gather(self) -> list[Tensor]:
        """Wait for all gradients and return them, each element once on some rank: all of them, or this rank's part."""
        gradients = []
        for update in self.updates:
            self._await_gradients(update, own=self._schedule.update == "after_backward")
            for flat in update.flats:
                gradients += flat.own_gradients()
        return gradients

    # ---- updates take them

    def step(self) -> None:
        """Update by what is reduced, or note that it is to be done before the next use; by this rank's gradients alone
        where nothing was sent."""
        self.unstepped = False
        if self._local:
            self._carry_out_all()
            for update in self.updates:
                for flat in update.flats:
                    if flat.shard is not None:
                        flat.complete_locally()
                        flat.give_gradients()
                update.carry_out()
        # The user's learning rate of this moment is kept with the request: the next forward carries the step out, and a
        # scheduler may have moved the rate by then.
        elif self._schedule.update == "before_use":
            for update in self.updates:
                update.ask()
                self.pending.update(update.indices)
        elif self._schedule.update == "after_backward":
            for update in self.updates:
                self._await_gradients(update, own=True)
                update.carry_out()
                self._note_updated(update)

    def settle(self, indices: Iterable[int]) -> bool:
        """Carry out what is pending of these parameters; return whether anything was."""
        held_up = False
        for index in indices:
            if index in self.pending:
                self._carry_out(self._update[index])
                held_up = True
        return held_up

    def complete(self) -> None:
        """Carry out all that is pending and on its way, as before weights are read or written from outside."""
        self._carry_out_all()
        self._launcher.wait_all()

    def progress(self) -> list[bool]:
        """Return which updates were stepped in the last iteration."""
        return [update in self._stepped for update in self.updates]

    def resume(self, stepped: list[bool]) -> None:
        """Go on from what `progress` returned."""
        self._stepped = {update for update, done in zip(self.updates, stepped, strict=True) if done}

    def _carry_out_all(self) -> None:
        for update in self.updates:
            self._carry_out(update)

    def _carry_out(self, update: ParameterUpdate) -> None:
        if not update.pending:
            return
        self._await_gradients(update, own=False)
        self.pending.difference_update(update.indices)
        begin = self.observer.now() if self.observer is not None else None
        # Forward may call this inside `inference_mode`, whose tensors could never be trained again.
        with torch.inference_mode(False), torch.no_grad():
            update.carry_out()
        for flat in update.flats:
            flat.take_gradients()
            if self._zeroed:
                _give_zeros(flat, self._zeroed)
        self._zeroed.difference_update(update.indices)
        if self.observer is not None:
            self.observer.note_update(begin)
        self._note_updated(update)

    def _await_gradients(self, update: ParameterUpdate, *, own: bool) -> None:
        """Wait for the gradients of `update` and give them to its parameters, as views or copied to their own."""
        awaited = self._queue.take_waits(*self._before[update])
        self._launcher.wait(awaited)
        for flat in update.flats:
            if not self._reduced.intersection(flat.indices):
                continue
            if own and flat not in self._taken:
                if awaited:
                    flat.write_back(flat.untouched)
            else:
                flat.give_gradients()

    def _note_updated(self, update: ParameterUpdate) -> None:
        self._reduced.difference_update(update.indices)
        self._stepped.add(update)
        self._launcher.launch(self._queue.mark_passed(*self._after[update]))


def _give_zeros(flat: FlatGradients, indices: Collection[int]) -> None:
    """Give those of the parameters of `flat` that have these registration indices gradients of zero."""
    for index, parameter in zip(flat.indices, flat.parameters, strict=True):
        if index in indices:
            parameter.grad = torch.zeros_like(parameter)


def _updates(carried: CarriedMessages, make: MakeOptimizer) -> list[ParameterUpdate]:
    """Return what is updated together: a bucket's parameters or this rank's part of them, or the whole model."""
    schedule, flats = carried.schedule, carried.flats
    if keeps_parts(schedule):
        return [ParameterUpdate([flat], [flat.shard], make) for flat in flats if flat.shard is not None]
    if schedule.update == "before_use":
        return [ParameterUpdate([flat], flat.parameters, make) for flat in flats]
    summed = {index for flat in flats for index in flat.indices}
    alone = [each for each in carried.averaged.values() if not summed.issuperset(each.indices)]
    return [ParameterUpdate([*flats, *alone], carried.parameters, make)]  # type: ignore[list-item]


class ScheduledOptimizer(torch.optim.Optimizer):
    """What a user steps: it asks the schedule for a step of all its instances, whose parameter groups are its own.

    A learning rate scheduler takes it as any optimizer. `zero_grad` takes away what has come since the last step; what
    a step that is still to be carried out needs is not among it.

    Args:
        scheduler: carries steps out, or notes them.
    """

    def __init__(self, scheduler: UpdateScheduler) -> None:
        # Where others are stepped than those a user holds: his, each with one of them, and what was last seen of his.
        self._followed: list[tuple[list[dict[str, Any]], dict[str, Any]]] = []
        self._seen: list[dict[str, Any]] = []
        self.scheduler = scheduler
        if groups := [group for update in scheduler.updates for group in update.groups]:
            super().__init__([{"params": group["params"]} for group in groups], {})
        self.follow(scheduler)

    def follow(self, scheduler: UpdateScheduler) -> None:
        """Step by `scheduler` from now on."""
        scheduler.had |= self.scheduler.had
        self.scheduler, self._followed = scheduler, []
        self.param_groups = [group for update in scheduler.updates for group in update.groups]

    def follow_with_groups(self, scheduler: UpdateScheduler) -> None:
        """Step by `scheduler` from now on, by the parameter groups that there are: learning rate schedulers hold them.

        Raises:
            OptionError: parameters that are to be updated together, of groups that differ; nothing has changed then.
        """
        self._take_changes()
        own = {tensor: group for group in self.param_groups for tensor in group["params"]}
        stepped = [group for update in self.scheduler.updates for group in update.groups]
        former = {tensor: group for group in stepped for tensor in group["params"]}
        groups = [group for update in scheduler.updates for group in update.groups if group["params"]]
        followed = [(_drop_repeated(own[tensor] for tensor in group["params"]), group) for group in groups]
        values = [hyperparameters(_drop_repeated(former[tensor] for tensor in group["params"])[0]) for group in groups]
        for group, value in zip(groups, values, strict=True):
            group.update(value)
        scheduler.had |= self.scheduler.had
        self.scheduler, self._followed = scheduler, followed
        self._note_seen()

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Carry out a step, or note it where the schedule has the next forward do that.

        Raises:
            OptionError: a closure, which would compute gradients anew.
        """
        if closure is not None:
            raise OptionError("a schedule's optimizer takes no closure", remedy="use an optimizer that needs none")
        self._take_changes()
        self.scheduler.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters."""
        self.scheduler.zero(to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all parameters as one optimizer's of the whole model has it, after pending steps.

        Raises:
            OptionError: the state is sharded; each rank has its part.
        """
        self.scheduler.complete()
        self._take_changes()
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        for update in self.scheduler.updates:
            if any(flat.shard is not None for flat in update.flats):
                what, remedy = "the optimizer's state is sharded", "save `shard_state_dict()` on each rank"
                raise OptionError(what, remedy=remedy)
            places = update.places
            for group in update.groups:
                _add_group(groups, group, sorted(places[tensor] for tensor in group["params"]))
            state |= {places[tensor]: values for tensor, values in update.optimizer.state.items()}
        for group in groups:
            group["params"] = sorted(group["params"])
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of a whole model's optimizer, as `state_dict` returns it."""
        self.scheduler.complete()
        for update in self.scheduler.updates:
            places = update.places
            for group in update.groups:
                for tensor in group["params"]:
                    if (index := places[tensor]) in state_dict["state"]:
                        update.optimizer.state[tensor] = _copy_state(state_dict["state"][index], tensor)
                first = places[group["params"][0]]
                saved = next(each for each in state_dict["param_groups"] if first in each["params"])
                group.update(hyperparameters(saved))
        for own, group in self._followed:
            for each in own:
                each.update(hyperparameters(group))
        self._note_seen()

    def shard_state_dict(self) -> list[dict[str, Any]]:
        """Return the state dict of each instance on this rank, after pending steps."""
        self.scheduler.complete()
        return [update.optimizer.state_dict() for update in self.scheduler.updates]

    def load_shard_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Take what `shard_state_dict` returned on this rank."""
        self.scheduler.complete()
        for update, state in zip(self.scheduler.updates, states, strict=True):
            update.optimizer.load_state_dict(state)
        self.follow(self.scheduler)  # torch's optimizers have other parameter groups now

    def _take_changes(self) -> None:
        """Give the groups that are stepped what the user has changed of those that he holds since it was last seen.

        Raises:
            OptionError: groups that now differ, whose parameters are updated together.
        """
        for (own, group), before in zip(self._followed, self._seen, strict=True):
            values = hyperparameters(_drop_repeated(own)[0])
            # Only what the user changed since last time: a value that an optimizer itself changes in its group is left.
            group.update(
                {
                    name: value
                    for name, value in values.items()
                    if name not in before or not (before[name] is value or before[name] == value)
                }
            )
        self._note_seen()

    def _note_seen(self) -> None:
        self._seen = [hyperparameters(own[0]) for own, _ in self._followed]


def _drop_repeated(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each of some groups once.

    Raises:
        OptionError: values of them differ, of parameters that are updated together.
    """
    first, *others = {id(group): group for group in groups}.values()
    for other in others:
        for name, value in hyperparameters(first).items():
            if other.get(name) != value:
                what = f"{name!r} is {value!r} and {other.get(name)!r} in groups that are updated together"
                raise OptionError(what, place="optimizer", remedy="give all groups the same value")
    return [first, *others]


def _add_group(groups: list[dict[str, Any]], group: dict[str, Any], indices: list[int]) -> None:
    values = hyperparameters(group)
    for known in groups:
        if hyperparameters(known) == values:
            known["params"] += indices
            return
    groups.append({**values, "params": indices})


def _copy_state(state: dict[str, Any], tensor: Tensor) -> dict[str, Any]:
    return {
        key: value.detach().clone().to(tensor.device) if isinstance(value, Tensor) and value.dim() else
        value.clone() if isinstance(value, Tensor) else value
        for key, value in state.items()
    }  # fmt: skip
