"""What an iteration does at each of its points: the one interpreter of schedules, driven by `LaunchQueue`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ddpexec.ddp import messages
from ddpexec.ddp.launcher import Launcher
from ddpexec.ddp.mixed import MixedPrecision
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.used import UsedMap
from ddpexec.errors import ExecutionError
from ddpexec.groups.process_groups import Communicator, Work
from ddpexec.schedules.averaged import rates_of
from ddpexec.schedules.lanes import CommunicationStreams
from ddpexec.schedules.memory import FlatGradients
from ddpexec.schedules.message_memory import MessageMemory
from ddpexec.schedules.sendings import ScheduleSendings
from ddpexec.schedules.stepper import UpdateScheduler
from ddpexec.schedules.updates import MakeOptimizer
from ddpexec.timing.observe import Observer
from ddpsim.operations import Operation
from ddpsim.schedules.issuing import queue_of
from ddpsim.schedules.points import BACKWARD_END, PointKind, points
from ddpsim.schedules.schedule import TRAINERS, Schedule, parameters_at


class ScheduleReducer:
    """Carries one schedule out, iteration by iteration; an `Executor` says which gradients have come.

    Args:
        schedule: checked, and the same on every rank.
        model: its parameters, in registration order.
        communicator: of the ranks.
        lanes: of the run.
        make_optimizer: makes an instance of some parameters.
        some_unused: whether parameters may have no gradient: ranks then tell each other which.
        static_graph: whether those are the same in every iteration.
        mixed: lowers the parameters' precision until backward has ended; None leaves it.
        observer: takes the moments of each message and update; None takes none.

    Attributes:
        in_forward: whether anything is waited for or launched where forward uses a parameter.
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
        mixed: MixedPrecision | None,
        observer: Observer | None,
    ) -> None:
        self.schedule, self._model, self._communicator = schedule, model, communicator
        self._observer, self._searching, self._static = observer, some_unused and not static_graph, static_graph
        self._mixed = mixed
        self.memory = MessageMemory(schedule, model, communicator, None if mixed is None else mixed.dtype)
        self.launcher = Launcher(communicator, observer)
        self.sendings = ScheduleSendings(schedule, self.memory, communicator, lanes, self.launcher)
        self._queue, self._flying = queue_of(schedule), self.launcher.flying
        self._flat = {index: flat for flat in self.memory.flats for index in flat.indices}
        self._sparse = {index for message in schedule if message.sparse for index in message.parameters}
        everything = tuple(range(len(model.tensors)))
        self._in_forward = parameters_at(schedule, PointKind.FORWARD)
        self._gradient_points = points(PointKind.GRADIENT, everything)
        self._forward_points = points(PointKind.FORWARD, everything)
        self.stepper = UpdateScheduler(
            schedule, model, self.memory, self.launcher, self._queue, make_optimizer, observer
        )
        self.sendings.rates = rates_of([group for update in self.stepper.updates for group in update._groups])
        self.in_forward = bool(self._in_forward) or schedule.update == "before_use"
        self.iteration = 0
        trainers = schedule.groups.get(TRAINERS)
        self._trainers = None if trainers is None else lanes.of("main", rings=False, ranks=trainers)
        self.used = UsedMap(model, communicator, self._sum_trainers if self._trainers else None)
        self._forwarded: set[int] = set()
        self._unused: Sequence[int] = ()
        self._local = self._open = False
        # Servers have updated by what they were sent, and chunks that were left out are kept: no more can be added.
        self._once = schedule.update == "elsewhere" or any(m.sparse or m.chunks is not None for m in schedule)
        self._unstepped = False

    # ---- forward

    def begin(self, *, local: bool) -> None:
        """Begin an iteration at its forward; a `local` one sends nothing."""
        if self._unstepped and not local:
            what = f"gradients of scheme {self.schedule.scheme} were sent, and no step was taken"
            raise ExecutionError(what, remedy="leave them out by `no_sync`, give `every`, or step after each backward")
        self._local, self._open, self._forwarded = local, True, set()
        if self._observer is not None:
            self._observer.scheduled()
        self.stepper.restore()
        if not local:
            self.stepper.pass_over(first=not self.iteration)
            self.iteration += 1
            self.launcher.begin()
            self.launcher.launch(self._queue.begin())

    def forward(self, indices: Sequence[int]) -> bool:
        """Let forward use parameters: carry out what they still wait for; return whether there was any of it."""
        held_up = bool(self.stepper.pending) and self.stepper.settle(indices)
        if not self._in_forward:
            return held_up
        queue, launches = self._queue, self._open and not self._local
        for index in indices:
            if index in self._in_forward and index not in self._forwarded:
                self._forwarded.add(index)
                point = self._forward_points[index]
                if awaited := queue.waits(point):
                    self.launcher.wait(awaited)
                    held_up = True
                if launches and (launchable := queue.passed(point)):
                    self.launcher.launch(launchable)
        return held_up

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

    # ---- what the executor says

    def coming(self, unused: Sequence[int]) -> None:
        """Expect a backward, in which the parameters of these registration indices will get no gradient."""
        self._unused = unused

    def began(self, unused: Sequence[int]) -> None:
        """Take it that the gradients of `unused` are not to be waited for."""
        self._unused = unused
        if self.in_forward:  # their pending updates need the buffers that this iteration fills
            self.forward(unused)
        for index in unused:
            self.take(index)

    def take(self, index: int) -> None:
        """Take a gradient, or none, into its buffer, and launch what comes after it."""
        if (flat := self._flat.get(index)) is not None and not self.iteration % flat.every:
            if flat.filled:  # let it be filled anew, once no message carries it any more
                flat.filled = False
                if not self._flying.keys().isdisjoint(flat.numbers):
                    self.launcher.wait(flat.numbers)
            if (place := flat.eager.get(index)) is not None:
                flat.bucket.fill(place)
        if launchable := self._queue.ready(self._gradient_points[index]):
            self.launcher.launch(launchable)

    def ended(self, arrival: Sequence[int], *, counted: bool) -> bool:
        """Wait for what is to be waited for before the optimizer's step; return that all is done.

        Raises:
            NeverReadyError: gradients that did not come although no parameter may be unused.
        """
        if self._observer is not None:
            begin = self._observer.now()
        # What forward left out is passed now: its pending updates need the buffers that this iteration fills.
        if self.in_forward:
            self.forward(range(len(self._model.tensors)))
        came = set(range(len(self._model.tensors)) if counted else (*arrival, *self._unused))
        for index in self._sparse - came:  # pushed as no rows
            self.launcher.launch(self._queue.passed(self._gradient_points[index]))
        if missing := [index for index in self._flat if index not in came]:
            rank, names = self._communicator.rank, self._model.names
            raise messages.never_ready(rank, missing, names, find_unused=self._searching, static=self._static)
        self._open, self._forwarded = False, set()
        self._unstepped = self._once and any(self.iteration % message.every == 0 for message in self.schedule)
        if self._searching or counted:
            self._exchange_used()
        self.launcher.launch(self._queue.passed(BACKWARD_END))
        if self._mixed is not None:
            self._mixed.restore()
        self.launcher.wait(awaited := self._queue.waits(BACKWARD_END))
        for number in awaited:
            message = self.schedule.messages[number]
            if message.op.reduces and not message.sparse:
                self.memory.flat_of(message).write_back()
        self.stepper.reduced(self._sent)
        if self._observer is not None:
            self._observer.finished(begin)
        return True

    def shadow(self, *, counted: bool) -> None:
        """Take part in an iteration with gradients of zero, and leave this rank's own alone."""
        self._drop_gradients()
        self.begin(local=False)
        self.coming(())
        for index in self._flat:
            self.take(index)
        self.ended(list(self._flat), counted=counted)
        self._drop_gradients()

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
        self._queue.resume(self.iteration)

    def divide_by(self, ranks: int) -> None:
        """Divide the sums of the coming backward by `ranks`, where no communication hook does as it likes."""
        if not self.sendings.hooked:
            for flat in self.memory.flats:
                flat.summed_over = ranks

    # ---- gradients

    def _drop_gradients(self) -> None:
        self.stepper.forget()
        for tensor in self._model.tensors:
            tensor.grad = None

    @property
    def _sent(self) -> list[FlatGradients]:
        """The gradients that this iteration sums."""
        return [flat for flat in self.memory.flats if self.iteration % flat.every == 0]

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
