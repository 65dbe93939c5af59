"""The schedule of a scheme, as an executor carries it out: its memory, its updates, and what it keeps."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from ddpexec.ddp import messages
from ddpexec.ddp.buckets import Eager
from ddpexec.ddp.executor import PendingUpdates
from ddpexec.ddp.launcher import Launcher
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.used import UsedMap
from ddpexec.errors import ExecutionError
from ddpexec.groups.process_groups import Communicator, Work
from ddpexec.schedules.averaged import rates_of
from ddpexec.schedules.lanes import CommunicationStream, CommunicationStreams
from ddpexec.schedules.memory import FlatGradients
from ddpexec.schedules.message_memory import MessageMemory
from ddpexec.schedules.sendings import ScheduleSendings
from ddpexec.schedules.stepper import UpdateScheduler
from ddpexec.schedules.updates import MakeOptimizer
from ddpexec.timing.observe import Observer
from ddpsim.operations import Operation
from ddpsim.schedules.issuing import queue_of
from ddpsim.schedules.points import PointKind, points
from ddpsim.schedules.schedule import TRAINERS, Schedule, parameters_at


class SchemeSchedule:
    """The schedule of a scheme, which an `Executor` carries out, with the updates of its optimizer.

    Args:
        schedule: checked, and the same on every rank.
        model: its parameters, in registration order.
        communicator: of the ranks.
        lanes: of the run.
        make_optimizer: makes an instance of some parameters.
        some_unused: whether parameters may have no gradient: ranks then tell each other which.
        static_graph: whether those are the same in every iteration.
        sent: in which type gradients come and are sent; None is their parameters'.
        observer: takes the moments of each update; None takes none.

    Attributes:
        launcher: of the messages.
        iteration: that were begun and not local, so far.
        used: which parameters ranks used.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: ModelParameters,
        communicator: Communicator,
        lanes: CommunicationStreams,
        make_optimizer: MakeOptimizer,
        *,
        some_unused: bool,
        static_graph: bool,
        sent: torch.dtype | None,
        observer: Observer | None,
    ) -> None:
        self.schedule, self._model, self._communicator = schedule, model, communicator
        self._searching, self._static = some_unused and not static_graph, static_graph
        self.memory = MessageMemory(schedule, model, communicator, sent)
        self.launcher, self.queue = Launcher(communicator), queue_of(schedule)
        self.launch = self.launcher.launch
        self.sendings = ScheduleSendings(schedule, self.memory, communicator, lanes, self.launcher)
        self._flat = {index: flat for flat in self.memory.flats for index in flat.indices}
        self._sparse = {index for message in schedule if message.sparse for index in message.parameters}
        self._points = points(PointKind.GRADIENT, tuple(range(len(model.tensors))))
        self.in_forward: Collection[int] = parameters_at(schedule, PointKind.FORWARD)
        self.stepper = UpdateScheduler(
            schedule, model, self.memory, self.launcher, self.queue, make_optimizer, observer
        )
        self.updates: PendingUpdates | None = self.stepper if schedule.update == "before_use" else None
        self.sendings.rates = rates_of([group for update in self.stepper.updates for group in update._groups])
        self.iteration = 0
        trainers = schedule.groups.get(TRAINERS)
        self._trainers = None if trainers is None else lanes.of("main", rings=False, ranks=trainers)
        self.used = UsedMap(model, communicator, self._sum_trainers if self._trainers else None)
        # Not all gradients are sent in every iteration.
        period = math.lcm(*(flat.every for flat in self.memory.flats))
        self._eager = [self._eager_in(iteration) for iteration in range(period)]
        self.eager: Sequence[Eager] = self._eager[0]
        self._local = self._open = False
        # Servers have updated by what they were sent, and chunks that were left out are kept: no more can be added.
        self._once = schedule.update == "elsewhere" or any(m.sparse or m.chunks is not None for m in schedule)
        self._unstepped = False

    def begin(self, *, local: bool) -> None:
        """Begin an iteration at its forward; a `local` one sends nothing."""
        if self._unstepped and not local:
            what = f"gradients of scheme {self.schedule.scheme} were sent, and no step was taken"
            raise ExecutionError(what, remedy="leave them out by `no_sync`, give `every`, or step after each backward")
        self._local, self._open = local, True
        self.stepper.restore()
        if not local:
            self.stepper.pass_over(first=not self.iteration)
            self.iteration += 1

    def check_settled(self, index: int) -> None:
        """Raise where a gradient comes of a parameter whose update is still to be carried out.

        Raises:
            ExecutionError: forward used it without telling.
        """
        if self._open and index in self.stepper.pending:
            raise ExecutionError(
                f"forward used {self._model.called(index, self._communicator.rank)} before its update was carried out",
                remedy="call the module that owns it, or wrap the module whose forward uses it",
            )

    @property
    def streams(self) -> list[CommunicationStream]:
        """What carries its messages."""
        return self.sendings.streams

    @property
    def announced(self) -> bool:
        """Whether something is launched, waited for or updated where forward uses a parameter."""
        return self.updates is not None or bool(self.in_forward)

    # ---- what the executor says

    def coming(self, unused: Sequence[int]) -> None:
        """Expect a backward: nothing is done before its first gradient."""

    def began(self, unused: Sequence[int]) -> None:
        """Let the buffers of this iteration's gradients be filled anew, once no message carries them any more."""
        carrying: list[int] = []
        for flat in self._sent:
            flat.filled = False
            carrying += flat.numbers
        self.launcher.wait(carrying)
        self.eager = self._eager[self.iteration % len(self._eager)]

    def absent(self, indices: Sequence[int]) -> bool:
        """Push the gradients that did not come as no rows, where rows are pushed.

        Raises:
            NeverReadyError: others although no parameter may be unused.
        """
        for index in self._sparse.intersection(indices):
            self.launch(self.queue.passed(self._points[index]))
        if missing := [index for index in indices if index in self._flat]:
            rank, names = self._communicator.rank, self._model.names
            raise messages.never_ready(rank, missing, names, find_unused=self._searching, static=self._static)
        return True

    def computed(self, *, counted: bool) -> None:
        """Share which parameters ranks used, where that may differ."""
        self._open = False
        self._unstepped = self._once and any(self.iteration % message.every == 0 for message in self.schedule)
        if self._searching or counted:
            self._exchange_used()

    def write_back(self, numbers: Sequence[int]) -> None:
        """Wait for the messages that backward's end waits for, and give the parameters what they summed."""
        self.launcher.wait(numbers)
        for number in numbers:
            message = self.schedule.messages[number]
            if message.op.reduces and not message.sparse:
                self.memory.flat_of(message).write_back()

    def ended(self, arrival: Sequence[int], *, counted: bool) -> None:
        """Take it that gradients are reduced, or on their way."""
        self.stepper.reduced(self._sent)

    def missing(self) -> Sequence[int]:
        """Return nothing: what is missing is said where backward ends."""
        return ()

    # ---- the optimizer's step

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
        self.launcher.wait_all()

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
        self.queue.resume(self.iteration)

    def divide_by(self, ranks: int) -> None:
        """Divide the sums of the coming backward by `ranks`, where no communication hook does as it likes."""
        if not self.sendings.hooked:
            for flat in self.memory.flats:
                flat.summed_over = ranks

    # ---- gradients

    def drop_gradients(self) -> None:
        """Let this rank's gradients be none, which are sent as zeros."""
        self.stepper.forget()
        for tensor in self._model.tensors:
            tensor.grad = None

    @property
    def _sent(self) -> list[FlatGradients]:
        """The gradients that this iteration sums."""
        return [flat for flat in self.memory.flats if self.iteration % flat.every == 0]

    def _eager_in(self, iteration: int) -> list[Eager]:
        """Return, by registration index, where gradients are copied as they come in `iteration`."""
        found: list[Eager] = [None] * len(self._model.tensors)
        for flat in self.memory.flats:
            if iteration % flat.every == 0:
                for index, place in flat.eager.items():
                    found[index] = flat.bucket, place
        return found

    def _exchange_used(self) -> None:
        if self.schedule.update == "elsewhere" or not self._sent:
            return
        for index, tensor in enumerate(self._model.tensors):  # of this iteration, or of one before it of the same step
            self.used.mark(index, tensor)
        self.used.reduce(0)
        for flat in self.memory.flats:
            # Of chunks it is not this iteration's gradients alone that are sent: each has its turn.
            flat.untouched = () if self.memory.in_chunks(flat) else self.used.untouched(flat.indices)
        self.used.finish(keep=False)

    def _sum_trainers(self, used: Tensor, _: int) -> Work:
        assert self._trainers is not None
        return self._trainers.launch(Operation.ALLREDUCE, used, ())
