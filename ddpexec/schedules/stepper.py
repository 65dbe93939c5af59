"""When the updates of a schedule's optimizer are carried out, and the gradients that each of them takes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ddpexec.ddp.launcher import Launcher
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.schedules.memory import FlatGradients
from ddpexec.schedules.message_memory import MessageMemory, keeps_parts
from ddpexec.schedules.updates import MakeOptimizer, ParameterUpdate
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import LaunchQueue
from ddpsim.schedules.points import Point, PointKind, points
from ddpsim.schedules.schedule import Schedule


class UpdateScheduler:
    """Carries updates out: at the optimizer's step, or before what they update is next used.

    Args:
        schedule: checked.
        model: whose parameters are updated.
        memory: that the schedule's messages carry.
        launcher: launches messages that an update lets go, and waits for those that it needs.
        queue: tells which those are.
        make_optimizer: makes an instance of some parameters.
        observer: takes the moments of each update that is carried out before a use; None takes none.

    Attributes:
        pending: registration indices whose step was asked for and not carried out.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: ModelParameters,
        memory: MessageMemory,
        launcher: Launcher,
        queue: LaunchQueue[Point],
        make_optimizer: MakeOptimizer,
        observer: Observer | None,
    ) -> None:
        self._schedule, self._launcher, self._queue, self._observer = schedule, launcher, queue, observer
        self.updates = _updates(schedule, model, memory, make_optimizer)
        self._update = {index: update for update in self.updates for index in update.indices}
        self._before = {update: points(PointKind.OPTIMIZER, update.indices) for update in self.updates}
        self._after = {update: points(PointKind.UPDATED, update.indices) for update in self.updates}
        # Those whose gradients are the schedule's own once they are in its buffers, and nobody else's.
        late = schedule.update != "after_backward"
        self._taken = {flat for flat in memory.flats if late or flat.shard is not None}
        self.pending: set[int] = set()
        self._reduced: set[int] = set()
        self._stepped: set[ParameterUpdate] = set()

    def observe(self, observer: Observer | None) -> None:
        """Let `observer` take the moments of updates from now on; None takes none."""
        self._observer = observer

    # ---- gradients come

    def restore(self) -> None:
        """Give gradients that were reduced and not used back to their parameters, for more to be added."""
        for update in self.updates:
            if not update.pending and self._reduced.intersection(update.indices):
                self._await_gradients(update, own=True)
                self._reduced.difference_update(update.indices)
                for flat in update.flats:
                    if flat in self._taken:
                        flat.restore_gradients(flat.summed_over)

    def pass_over(self, *, first: bool) -> None:
        """Pass the points of updates that the iteration before left out, so that nothing waits behind them."""
        if not first and self._schedule.update == "after_backward":
            for update in self.updates:
                if update not in self._stepped:
                    self._launcher.launch(self._queue.passed(*self._after[update]))
        self._stepped.clear()

    def reduced(self, flats: Iterable[FlatGradients]) -> None:
        """Note that gradients of `flats` are reduced, or on their way."""
        for flat in flats:
            if self._schedule.update != "elsewhere":
                self._reduced.update(flat.indices)
            if flat in self._taken:
                flat.take_gradients()

    def forget(self) -> None:
        """Take gradients that were reduced and not used for gone."""
        for update in self.updates:
            if not update.pending:
                self._await_gradients(update, own=False)
                self._reduced.difference_update(update.indices)

    def gather(self) -> list[Tensor]:
        """Wait for all gradients and return them, each element once on some rank: all of them, or this rank's part."""
        found = []
        for update in self.updates:
            self._await_gradients(update, own=self._schedule.update == "after_backward")
            for flat in update.flats:
                found += flat.own_gradients()
        return found

    # ---- updates take them

    def step(self) -> None:
        """Update what is reduced, or note that it is to be updated before it is next used."""
        if self._schedule.update == "before_use":
            for update in self.updates:
                update.ask()
                self.pending.update(update.indices)
        elif self._schedule.update == "elsewhere":
            return
        else:
            for update in self.updates:
                self._await_gradients(update, own=True)
                update.carry_out()
                self._updated(update)

    def step_locally(self) -> None:
        """Step with this rank's gradients, as if there were no others."""
        self.settle_all()
        for update in self.updates:
            for flat in update.flats:
                if flat.shard is not None:
                    flat.complete_locally()
                    flat.give_gradients()
            update.carry_out()

    def settle(self, indices: Iterable[int]) -> bool:
        """Carry out what is pending of these parameters; return whether anything was."""
        held_up = False
        for index in indices:
            if index in self.pending:
                self._carry_out(self._update[index])
                held_up = True
        return held_up

    def settle_all(self) -> None:
        """Carry out all that is pending."""
        for update in self.updates:
            self._carry_out(update)

    def progress(self) -> list[bool]:
        """Return which updates were stepped in the last iteration."""
        return [update in self._stepped for update in self.updates]

    def resume(self, stepped: list[bool]) -> None:
        """Go on from what `progress` returned."""
        self._stepped = {update for update, done in zip(self.updates, stepped, strict=True) if done}

    def _carry_out(self, update: ParameterUpdate) -> None:
        if not update.pending:
            return
        self._await_gradients(update, own=False)
        self.pending.difference_update(update.indices)
        begin = self._observer.now() if self._observer is not None else None
        with torch.inference_mode(False), torch.no_grad():
            update.carry_out()
        for flat in update.flats:
            flat.take_gradients()
        if self._observer is not None:
            self._observer.updated(begin)
        self._updated(update)

    def _await_gradients(self, update: ParameterUpdate, *, own: bool) -> None:
        """Wait for the gradients of `update` and give them to its parameters, as views or copied to their own."""
        awaited = self._queue.waits(*self._before[update])
        self._launcher.wait(awaited)
        for flat in update.flats:
            if not self._reduced.intersection(flat.indices):
                continue
            if own and flat not in self._taken:
                if awaited:
                    flat.write_back()
            else:
                flat.give_gradients()

    def _updated(self, update: ParameterUpdate) -> None:
        self._reduced.difference_update(update.indices)
        self._stepped.add(update)
        self._launcher.launch(self._queue.passed(*self._after[update]))


def _updates(
    schedule: Schedule, model: ModelParameters, memory: MessageMemory, make: MakeOptimizer
) -> list[ParameterUpdate]:
    """Return what is updated together: a bucket's parameters or this rank's part of them, or the whole model."""
    flats = memory.flats
    if keeps_parts(schedule):
        return [ParameterUpdate([flat], [flat.shard], make) for flat in flats if flat.shard is not None]
    if schedule.update == "before_use":
        return [ParameterUpdate([flat], flat.tensors, make) for flat in flats]
    summed = {index for flat in flats for index in flat.indices}
    alone = [each for each in memory.averaged if not summed.issuperset(each.indices)]
    return [ParameterUpdate([*flats, *alone], model.tensors, make)]  # type: ignore[list-item]
