"""The schedule of a scheme as the executor runs it: its memory, its optimizer's updates, and its state between steps.

What it adds to `ActiveSchedule`: parameters may still be pending when the next forward begins, and each use of one in
forward first carries out what it waits for (`UpdateScheduler.settle`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ddpexec.ddp.active_schedule import ActiveSchedule
from ddpexec.ddp.buckets import Eager, ReducerOptions
from ddpexec.ddp.comm_hooks import Hook
from ddpexec.ddp.lanes import CommunicationStreams
from ddpexec.ddp.memory import FlatGradients, rates_of
from ddpexec.ddp.messages import CarriedMessages
from ddpexec.ddp.parameter_servers import Server
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.stepper import UpdateScheduler
from ddpexec.ddp.updates import MakeOptimizer
from ddpexec.ddp.used_parameters import UsedMap, make_never_ready_error
from ddpexec.errors import ExecutionError, OptionError
from ddpexec.groups.process_groups import Communicator, Work
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan
from ddpsim.common.operation import Operation
from ddpsim.schedules.points import PointKind, points
from ddpsim.schedules.schedule import TRAINERS, Schedule, parameters_at, queue_of

Kept = dict[str, Any]
"""What a scheme keeps on a rank, saved: plain values and tensors, which `torch.save` takes."""


class SchemeSchedule(ActiveSchedule):
    """The schedule of a scheme, which an `Executor` carries out, with the updates of its optimizer.

    Args:
        schedule: checked, and the same on every rank.
        model: its parameters, in registration order.
        plan: the buckets that it was made of.
        communicator: of the ranks.
        options: see `ReducerOptions`.
        lanes: of the run.
        make_optimizer: makes an instance of some parameters.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: ModelParameters,
        plan: BucketPlan,
        communicator: Communicator,
        options: ReducerOptions,
        lanes: CommunicationStreams,
        make_optimizer: MakeOptimizer,
    ) -> None:
        super().__init__(model, plan, communicator, options)
        self.schedule = schedule
        self._unknown = options.static_graph  # what ranks use, until the first iteration that sends
        self.messages = CarriedMessages(schedule, model, communicator, lanes, self.launcher, options.bucket_dtype)
        self.queue = queue_of(schedule)
        self._flat = {index: flat for flat in self.messages.flats for index in flat.indices}
        self._sparse = {index for message in schedule if message.sparse for index in message.parameters}
        self._points = points(PointKind.GRADIENT, tuple(range(len(model.tensors))))
        self.in_forward = parameters_at(schedule, PointKind.FORWARD)
        self.stepper = UpdateScheduler(self.messages, self.queue, make_optimizer)
        self.pending, self.settle = self.stepper.pending, self.stepper.settle  # type: ignore[method-assign]
        self.waits_in_forward = bool(self.in_forward) or schedule.update == "before_use"
        self.messages.rates = rates_of([group for update in self.stepper.updates for group in update.groups])
        trainers = schedule.groups.get(TRAINERS)
        self._trainers = None if trainers is None else lanes.of("main", rings=False, ranks=trainers)
        self.used = UsedMap(model, communicator, self._sum_trainers if self._trainers else None)
        # Not all gradients are sent in every iteration.
        period = math.lcm(*(flat.every for flat in self.messages.flats))
        self._eager = [self._eager_in(iteration) for iteration in range(period)]
        self.eager: Sequence[Eager] = self._eager[0]
        self._open = False
        # Servers have updated by what they were sent, and chunks that were left out are kept: no more can be added.
        self._once = schedule.update == "elsewhere" or any(m.sparse or m.chunks is not None for m in schedule)

    # ---- told from outside

    def use_hook(self, hook: Hook, state: object, name: str = "") -> None:
        """Let `hook(state, bucket)` reduce each bucket of gradients, which are no longer divided before.

        Raises:
            OptionError: the schedule sums something else.
        """
        self.messages.use_hook(hook, state)
        super().use_hook(hook, state, name)

    def divide_by(self, ranks: int) -> None:
        """Divide the sums of the coming backward by `ranks`, where no communication hook does as it likes."""
        if not self.hooked:
            for flat in self.messages.flats:
                flat.divisor = ranks

    def observe(self, observer: Observer | None) -> None:
        """Let `observer` take the moments of messages and updates from now on; None takes none."""
        super().observe(observer)
        self.stepper.observer = observer

    def complete(self) -> None:
        """Carry out what is still to be carried out, so that the parameters are those after the last step."""
        self.stepper.complete()

    # ---- before backward

    def begin(self, *, local: bool) -> None:
        """Begin an iteration at its forward; a `local` one sends nothing."""
        self.stepper.begin(local=local, first=not self.iteration)
        self._open = True
        super().begin(local=local)

    def check_settled(self, index: int) -> None:
        """Raise where a gradient comes of a parameter whose update is still to be carried out.

        Raises:
            ExecutionError: forward used it without telling.
        """
        if self._open:
            raise ExecutionError(
                f"forward used {self.model.describe(index, self.communicator.rank)} before its update was carried out",
                remedy="call the module that owns it, or wrap the module whose forward uses it",
            )

    # ---- what the executor says

    def begin_backward(self, unused: Sequence[int]) -> None:
        """Let the buffers of this iteration's gradients be filled anew, once no message carries them any more."""
        super().begin_backward(unused)
        carrying: list[int] = []
        for flat in self._sent:
            flat.filled = False
            carrying += flat.numbers
        self.launcher.wait(carrying)
        self.eager = self._eager[self.iteration % len(self._eager)]

    def note_absent(self, indices: Sequence[int]) -> bool:
        """Push the gradients that did not come as no rows, where rows are pushed.

        Raises:
            NeverReadyError: others although no parameter may be unused.
        """
        for index in self._sparse.intersection(indices):
            self.launch(self.queue.mark_passed(self._points[index]))
        if missing := [index for index in indices if index in self._flat]:
            rank, names = self.communicator.rank, self.model.names
            searching, static = self.options.searching, self.options.static_graph
            raise make_never_ready_error(rank, missing, names, find_unused=searching, static=static)
        return True

    def end_computation(self, *, counted: bool) -> None:
        """Share which parameters ranks used, where that may differ."""
        self._open = False
        self.stepper.unstepped = self._once and any(self.iteration % message.every == 0 for message in self.schedule)
        if self.options.searching or self._unknown:
            self._exchange_used()
        super().end_computation(counted=counted)

    def write_back(self, numbers: Sequence[int]) -> None:
        """Wait for the messages that backward's end waits for, and give the parameters what they summed."""
        self.launcher.wait(numbers)
        for number in numbers:
            message = self.schedule.messages[number]
            if message.op.reduces and not message.sparse:
                flat = self.messages.flat[message.parameters]
                flat.write_back(flat.untouched)

    def end_iteration(self, arrival: Sequence[int], *, counted: bool) -> None:
        """Take it that gradients are reduced, or on their way."""
        self.stepper.note_reduced(self._sent)
        super().end_iteration(arrival, counted=counted)

    def list_missing(self) -> Sequence[int]:
        """Return nothing: `note_absent` raises for missing gradients at the end of backward."""
        return ()

    def state_dict(self, server: Server | None) -> Kept:
        """Return the schedule's own state on this rank; no update may be pending.

        Where it stands between two averages, SlowMo's last parameters and momentum, the gradients that GradientFlow has
        not sent yet, and the optimizers of a server's part.
        """
        return {
            "scheme": self.schedule.scheme,
            "place": (self.communicator.rank, self.communicator.world_size),
            "progress": (self.iteration, self.stepper.progress()),
            "tensors": [tensor.detach().clone() for tensor in self.messages.kept],
            "server": None if server is None else server.state_dict(),
        }

    def load_state_dict(self, server: Server | None, state: Kept) -> None:
        """Take up what `state_dict` returned on this rank of as many.

        Raises:
            OptionError: the state of another scheme, of another rank or number of ranks, or of another model.
        """
        here = {"scheme": self.schedule.scheme, "place": (self.communicator.rank, self.communicator.world_size)}
        for key, own in here.items():
            if state[key] != own:
                what, remedy = f"the state is of {key} {state[key]!r}", f"load that of {own!r}, which this is"
                raise OptionError(what, place="scheme's state", remedy=remedy)
        sizes, own_sizes = (
            [tensor.numel() for tensor in tensors] for tensors in (state["tensors"], self.messages.kept)
        )
        if sizes != own_sizes:
            what = f"the state is of tensors of {sizes} elements, not {own_sizes}"
            raise OptionError(what, place="scheme's state", remedy="load that of the same model")
        for tensor, value in zip(self.messages.kept, state["tensors"], strict=True):
            tensor.copy_(value)
        self.iteration, stepped = state["progress"]
        self.stepper.resume(stepped)
        self.queue.resume(self.iteration)
        if server is not None and state["server"] is not None:
            server.load_state_dict(state["server"])

    # ---- gradients

    @contextmanager
    def zero_gradients(self) -> Iterator[None]:
        """Let this rank's gradients be none inside, which are sent as zeros, and none behind: it steps nothing."""
        self._drop_gradients()
        yield
        self._drop_gradients()

    def _drop_gradients(self) -> None:
        self.stepper.forget()
        for tensor in self.model.tensors:
            tensor.grad = None

    @property
    def _sent(self) -> list[FlatGradients]:
        """The gradients that this iteration sums."""
        return [flat for flat in self.messages.flats if self.iteration % flat.every == 0]

    def _eager_in(self, iteration: int) -> list[Eager]:
        """Return, by registration index, where gradients are copied as they come in `iteration`."""
        eager: list[Eager] = [None] * len(self.model.tensors)
        for flat in self.messages.flats:
            if iteration % flat.every == 0 and not flat.late:
                for place, index in enumerate(flat.indices):
                    eager[index] = (flat, place) if flat.eager[place] else None
        return eager

    def _exchange_used(self) -> None:
        if self.schedule.update == "elsewhere" or not self._sent:
            return
        self._unknown = False
        for index, tensor in enumerate(self.model.tensors):  # of this iteration, or of one before it of the same step
            self.used.mark(index, tensor)
        self.used.reduce(0)
        for flat in self.messages.flats:
            # Of chunks it is not this iteration's gradients alone that are sent: each has its turn.
            flat.untouched = () if flat.indices in self.messages.chunked else self.used.find_untouched(flat.indices)
        self.used.finish(keep=False)

    def _sum_trainers(self, used: Tensor, _: int) -> Work:
        assert self._trainers is not None
        return self._trainers.launch(Operation.ALLREDUCE, used, ())
