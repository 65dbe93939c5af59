"""What an iteration does at each of its points: the one interpreter of schedules, driven by `IssueQueue`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Variable

from ddpexec.ddp import messages
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.errors import ExecutionError
from ddpexec.groups.process_groups import Communicator, wait
from ddpexec.schedules.carrier import Carrier
from ddpexec.schedules.lanes import Lanes
from ddpexec.schedules.message_memory import MessageMemory
from ddpexec.schedules.stepper import Stepper
from ddpexec.schedules.updates import MakeOptimizer
from ddpexec.timing.observe import Observer
from ddpsim.operations import Operation
from ddpsim.schedules.issuing import IssueQueue
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, Kind, Point, points
from ddpsim.schedules.schedule import TRAINERS, Schedule, averages, parameters_at


class Executor:
    """Carries one schedule out, iteration by iteration.

    Args:
        schedule: checked, and the same on every rank.
        model: its parameters, in registration order.
        communicator: of the ranks.
        lanes: of the run.
        make_optimizer: makes an instance of some parameters.
        find_unused: whether parameters may have no gradient: ranks then tell each other which.
        observer: takes the moments of each gradient, message and update; None takes none.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: ModelParameters,
        communicator: Communicator,
        lanes: Lanes,
        make_optimizer: MakeOptimizer,
        *,
        find_unused: bool,
        observer: Observer | None,
    ) -> None:
        self.schedule, self._model, self._communicator = schedule, model, communicator
        self._observer, self._find_unused = observer, find_unused
        self.memory = MessageMemory(schedule, model, communicator)
        self.carrier = Carrier(schedule, self.memory, communicator, lanes, observer)
        self._queue = IssueQueue(schedule)
        self._flat = {index: flat for flat in self.memory.flats for index in flat.indices}
        sums = [message for message in schedule if not averages(message) and not message.sparse]
        self._every = {index: max(m.every for m in sums if index in m.parameters) for index in self._flat}
        self._sparse = {index for message in schedule if message.sparse for index in message.parameters}
        self._in_forward = parameters_at(schedule, Kind.FORWARD)
        self._gradient_points = [Point(Kind.GRADIENT, index) for index in range(len(model.tensors))]
        self.stepper = Stepper(schedule, model, self.memory, self.carrier, self._queue, make_optimizer, observer)
        self.iteration = 0
        self._used = torch.zeros(len(model.tensors), dtype=torch.int32)
        trainers = schedule.groups.get(TRAINERS)
        self._trainers = None if trainers is None else lanes.of("main", rings=False, ranks=trainers)
        self._seen: set[int] = set()
        self._forwarded: set[int] = set()
        self._local = self._open = self._started = False
        # Servers have updated by what they were sent, and chunks that were left out are kept: no more can be added.
        self._once = schedule.update == "elsewhere" or any(m.sparse or m.chunks is not None for m in schedule)
        self._unstepped = False

    # ---- the points of an iteration

    def begin(self, *, local: bool) -> None:
        """Begin an iteration at its forward; a `local` one sends nothing."""
        if self._open and self._started:
            raise messages.broken_off(self._communicator.rank, None)
        if self._unstepped and not local:
            what = f"gradients of scheme {self.schedule.scheme} were sent, and no step was taken"
            raise ExecutionError(what, remedy="leave them out by `no_sync`, give `every`, or step after each backward")
        self._local, self._started, self._open = local, False, True
        self._seen, self._forwarded = set(), set()
        if self._observer is not None:
            self._observer.scheduled()
        self.stepper.restore()
        if not local:
            self.stepper.pass_over(first=not self.iteration)
            self.iteration += 1
            self.carrier.launch(self._queue.begin())

    def forward(self, indices: Sequence[int]) -> bool:
        """Let forward use parameters: carry out what they still wait for; return whether there was any of it."""
        held_up = self.stepper.settle(indices)
        new = [index for index in indices if index in self._in_forward and index not in self._forwarded]
        if new:
            self._forwarded.update(new)
            due = points(Kind.FORWARD, tuple(new))
            awaited = self._queue.waits(*due)
            self.carrier.wait(awaited)
            held_up = held_up or bool(awaited)
            if self._open and not self._local:
                self.carrier.launch(self._queue.passed(*due))
        return held_up

    def gradient(self, index: int, parameter: Tensor) -> None:
        """Take a gradient that has just been accumulated."""
        observer = self._observer
        begin = observer.now() if observer is not None else None
        self._gradient(index)
        if observer is not None:
            observer.hooks[index] = begin, observer.now()

    def step(self) -> None:
        """Update what is reduced, or note that it is to be updated before it is next used."""
        self._unstepped = False
        if self._local:
            self.stepper.step_locally()
        else:
            self.stepper.step()

    def forget(self) -> None:
        """Give up gradients that no step was asked for."""
        self._unstepped = False
        self.stepper.forget()

    def complete(self) -> None:
        """Carry out what is still to be carried out, as before weights are read or written from outside."""
        self.stepper.settle_all()
        self.carrier.wait_all()

    @property
    def place(self) -> tuple[int, int]:
        """This rank, and how many there are."""
        return self._communicator.rank, self._communicator.world_size

    def progress(self) -> tuple[int, list[bool]]:
        """Return the iterations that were begun, and which updates were stepped in the last."""
        return self.iteration, self.stepper.progress()

    def resume(self, progress: tuple[int, list[bool]]) -> None:
        """Go on from what `progress` returned."""
        self.iteration, stepped = progress
        self.stepper.resume(stepped)
        self._queue.resume(self.iteration)

    # ---- gradients

    def _gradient(self, index: int) -> None:
        if not self._open:
            return
        if self.stepper.pending(index):
            raise self._used_early(index)
        self._used[index] = 1
        if self._local:
            return
        if not self._started:
            self._started = True
            Variable._execution_engine.queue_callback(self._backward_ended)
        if index in self._seen:
            raise messages.ready_twice(self._communicator.rank, index, self._model.names[index])
        self._seen.add(index)
        self._take(index)

    def _take(self, index: int) -> None:
        """Take a gradient, or none, into its buffer, and launch what comes after it."""
        if self._sends(index):
            flat = self._flat[index]
            if self.carrier.unfinished(flat):
                self.carrier.wait(m for m in self.schedule if m.parameters == flat.indices)
            flat.arrived(index, flat.summed_over)
        self.carrier.launch(self._queue.passed(self._gradient_points[index]))

    def _used_early(self, index: int) -> ExecutionError:
        return ExecutionError(
            f"forward used {self._model.called(index, self._communicator.rank)} before its update was carried out",
            remedy="call the module that owns it, or wrap the module whose forward uses it",
        )

    def _sends(self, index: int) -> bool:
        return index in self._flat and self.iteration % self._every[index] == 0

    def _backward_ended(self) -> None:
        if self._observer is not None:
            begin = self._observer.now()
        # What forward left out is passed now: its pending updates need the buffers that this iteration fills.
        if self._in_forward or self.schedule.update == "before_use":
            self.forward(range(len(self._model.tensors)))
        self._push_nothing()
        if missing := [index for index in self._flat if index not in self._seen]:
            if not self._find_unused:
                rank, names = self._communicator.rank, self._model.names
                raise messages.never_ready(rank, missing, names, find_unused=False, static=False)
            for index in missing:
                self._take(index)
        self._open, self._forwarded = False, set()
        self._unstepped = self._once and any(self.iteration % message.every == 0 for message in self.schedule)
        if self._find_unused:
            self._exchange_used()
        self.carrier.launch(self._queue.passed(BACKWARD_END))
        self.carrier.wait(awaited := self._queue.waits(BACKWARD_END))
        self._end_flats(awaited)
        if self._observer is not None:
            self._observer.finished(begin)

    def _push_nothing(self) -> None:
        """Push sparse gradients that did not come, as no rows."""
        for index in self._sparse.difference(self._seen):
            self.carrier.launch(self._queue.passed(self._gradient_points[index]))

    def _end_flats(self, awaited: Sequence[Message]) -> None:
        for message in awaited:
            if message.op.reduces and not message.sparse:
                self.memory.flat_of(message).write_back()
        for flat in self.memory.flats:
            if self._sends(flat.indices[0]):
                self.stepper.reduced(flat)

    def _exchange_used(self) -> None:
        if self.schedule.update == "elsewhere" or not any(self._sends(index) for index in self._flat):
            return
        for index, tensor in enumerate(self._model.tensors):
            if tensor.grad is not None:  # of this iteration, or of one before it of the same step
                self._used[index] = 1
        work = (
            self._trainers.launch(Operation.ALLREDUCE, self._used, ())
            if self._trainers is not None
            else self._communicator.all_reduce(self._used, 0)
        )
        wait(work, self._communicator, "the exchange of what was used")
        unused = {index for index, used in enumerate(self._used.tolist()) if not used}
        for flat in self.memory.flats:
            # Of chunks it is not this iteration's gradients alone that are sent: each has its turn.
            flat.untouched = () if self.memory.in_chunks(flat) else unused.intersection(flat.indices)
        self._used.zero_()
