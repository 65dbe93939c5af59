"""The one executor: autograd's hooks drive the queue and the launcher of a schedule, DDP's buckets or any scheme's.

In the order of an iteration: `begin` and `forward` at uses of parameters, `expect` between forward and backward,
`_gradient` for each gradient, `_end` in autograd's callback at the end of backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from ddpexec.ddp import used_parameters as used
from ddpexec.ddp.active_schedule import ActiveSchedule
from ddpexec.ddp.hooks import hook_gradients, remove
from ddpexec.ddp.mixed import MixedPrecision
from ddpexec.ddp.used_parameters import StaticGraph, find_reachable
from ddpexec.errors import ExecutionError
from ddpexec.timing.observe import Observer
from ddpsim.bucketing.launch import MarkedTwiceError
from ddpsim.schedules.points import BACKWARD_END, PointKind, points


class Executor:
    """Carries a schedule out, one backward after another.

    Args:
        carried: the schedule in force.
        find_unused: whether the graph is searched, in each forward, for parameters that will get no gradient.
        static_graph: whether every backward visits each parameter as often as the first does; then nothing is searched.
        mixed: lowers the parameters' precision until backward has ended; None leaves it.
        on_gradient: called with the registration index of every gradient, whether it is sent or not.
        observer: takes the moments of each gradient; None takes none.

    Attributes:
        expecting: whether a backward that is reduced is to come, or under way.
        arrival: registration indices of the last backward, in the order in which gradients came.
        failure: what went wrong, which the next forward and logging data name; empty where nothing has.
        handles: of the hooks on gradients.
    """

    def __init__(
        self,
        carried: ActiveSchedule,
        *,
        find_unused: bool,
        static_graph: bool,
        mixed: MixedPrecision | None = None,
        on_gradient: Callable[[int], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.model, self._carried, self.launcher = carried.model, carried, carried.launcher
        self._rank, model = carried.communicator.rank, carried.model
        self._used, self._mixed = carried.used, mixed
        self._find_unused, self._on_gradient = find_unused, on_gradient
        self.static: StaticGraph | None = StaticGraph(model, self._rank) if static_graph else None
        # Held, so that the nodes live as long as the executor and are the ones met in every graph.
        self._nodes = {get_gradient_edge(parameter).node: i for i, parameter in enumerate(model.tensors)}
        self._all = tuple(range(len(model.tensors)))
        self._gradient_points = points(PointKind.GRADIENT, self._all)
        self._forward_points = points(PointKind.FORWARD, self._all)
        self.arrival: list[int] = []
        self.failure = ""
        self._unused: Sequence[int] = ()
        self._forwarded: set[int] = set()
        self.expecting = self._visits = self._unfinished = self._started = self._began = self._sends = False
        self.handles: list[RemovableHandle] = []
        self.observe(observer)

    def observe(self, observer: Observer | None) -> None:
        """Let `observer` take the moments of gradients and messages from the next backward on; None takes none."""
        self._carried.observe(observer)
        hook = self._gradient if observer is None else functools.partial(self._observe_gradient, observer)
        if self._on_gradient is not None:
            hook = functools.partial(_call_both, self._on_gradient, hook)
        self.remove_hooks()
        self.handles[:] = hook_gradients(self.model, hook)

    def remove_hooks(self) -> None:
        """Take the gradient hooks away; nothing is reduced any more."""
        remove(self.handles)

    def note_failure(self, error: Exception) -> None:
        """Name `error` in logging data, and where the next forward finds a backward broken off."""
        self.failure = str(error)  # not itself: the frames of its traceback hold the wrapper

    # ---- forward

    def begin(self, *, local: bool) -> None:
        """Begin an iteration at its forward; a `local` one sends nothing."""
        self._sends, self._forwarded = not local, set()
        if not local:
            self.launcher.begin()
            # Messages that wait for nothing of this iteration, such as gathers of the first parameters, go before
            # forward.
            if launchable := self._carried.queue.begin():
                self._carried.launch(launchable)

    def forward(self, indices: Sequence[int]) -> bool:
        """Let forward use parameters: carry out what they still wait for; return whether there was any of it."""
        carried = self._carried
        in_forward, queue = carried.in_forward, carried.queue
        held_up = bool(carried.pending) and carried.settle(indices)
        if not in_forward:
            return held_up
        for index in indices:
            if index in in_forward and index not in self._forwarded:
                self._forwarded.add(index)
                point = self._forward_points[index]
                # Wait first: a message that this use releases may carry the memory of the awaited one.
                if awaited := queue.take_waits(point):
                    self.launcher.wait(awaited)
                    held_up = True
                if self._sends and (launchable := queue.mark_passed(point)):
                    carried.launch(launchable)
        return held_up

    # ---- before backward

    @property
    def counting(self) -> bool:
        """Whether a static graph is in its first backward, in which gradients are only counted."""
        return self.static is not None and self.static.counting

    @property
    def searching(self) -> bool:
        """Whether graphs are searched for unused parameters."""
        return self._find_unused and self.static is None

    def set_static_graph(self) -> None:
        """Count, in the first backward, how often each gradient comes; from then on expect the same."""
        self.static = StaticGraph(self.model, self._rank)

    def check_finished(self) -> None:
        """Raise unless the previous backward reduced everything it began to reduce."""
        if self.static is not None and self.static.waiting and not self._started:
            raise self._fail(used.make_never_began_error(self._rank))
        if self._unfinished:
            missing, static = self._carried.list_missing(), self.static is not None
            if not missing:
                raise used.make_broken_off_error(self._rank, self.failure)
            names, find_unused = self.model.names, self._find_unused
            raise self._fail(
                used.make_never_ready_error(self._rank, missing, names, find_unused=find_unused, static=static)
            )

    def expect(self, output: object, left_out: Iterable[int] = ()) -> None:
        """Expect gradients of all parameters but those `left_out`, or that `output` is seen not to depend on."""
        # Unused parameters are known only here, after forward: torch's `Reducer::prepare_for_backward` searches the
        # graph at the same place.
        self.expecting = True
        self._started = self._began = False
        self.arrival = []
        if self.static is not None:
            self.static.restart()
        elif self._find_unused:
            with torch.autograd.profiler.record_function("search_unused_parameters"):
                reachable = find_reachable(output, self._nodes)
            self._unused = [index for index in range(len(self.model.tensors)) if index not in reachable]
        else:
            self._unused = sorted(left_out)
        self._visits = self.static is not None or self._find_unused
        self._carried.expect_backward(self._unused)

    def backward_started(self) -> None:
        """Note that the outermost backward of a static graph has begun, where its gradients are to be reduced."""
        if self.expecting and self.static is not None and not self._started:
            self._queue_callback()
            if not self.counting:
                self._begin()

    def shadow(self) -> None:
        """Take part, in an iteration that has begun, in a backward of other ranks: all gradients are as they are."""
        # This rank has no input left, the others have. It must send exactly their messages in their order: one left out
        # would leave all of them waiting. Nothing is observed, for the iteration is none of this rank's.
        observer, self.launcher.observer = self.launcher.observer, None
        counted = self.counting
        if self.static is not None and counted:
            self._unused = self.static.finish_counting()
        self.arrival = []
        self._carried.expect_backward(())
        self._start(())
        for index in self._all:
            self._take(index)
        self._end(complete=True, counted=counted)
        self.launcher.observer = observer

    # ---- hooks

    def _observe_gradient(self, observer: Observer, index: int, parameter: Tensor) -> None:
        begin = observer.now()
        self._gradient(index, parameter)
        observer.hooks[index] = begin, observer.now()

    def _gradient(self, index: int, parameter: Tensor) -> None:
        # The path of every gradient of every step: few lookups, no call that is not needed.
        carried = self._carried
        if index in carried.pending:
            carried.check_settled(index)
        if not self._started:
            if not self.expecting:
                if self._find_unused:
                    self._used.mark(index, parameter)
                return
            if not self.counting:
                self._queue_callback()
                self._begin()
        if self._visits and not self._visit(index, parameter):
            return
        self.arrival.append(index)
        if (eager := carried.eager[index]) is not None:  # as `_take`, without another call
            eager[0].fill(eager[1])
        try:
            if launchable := carried.queue.mark_ready(self._gradient_points[index]):
                carried.launch(launchable)
        except MarkedTwiceError as error:
            raise self._fail(used.make_ready_twice_error(self._rank, index, self.model.names[index])) from error

    def _visit(self, index: int, parameter: Tensor) -> bool:
        """Note that a parameter was used; return whether its gradient is complete with that."""
        self._used.mark(index, parameter)
        if self.static is None:
            return True
        try:
            return self.static.visit(index)
        except ExecutionError as error:
            raise self._fail(error) from None

    def _begin(self) -> None:
        if not self._began:
            self._began = self._unfinished = True
            self._start(self._unused)

    def _start(self, unused: Sequence[int]) -> None:
        """Take the gradients of `unused` as they are: the first of the others has come."""
        if unused and self._carried.waits_in_forward:  # pending updates need the buffers that this iteration fills
            self.forward(unused)
        # Unused parameters become ready with the first real gradient, as in torch's `Reducer::autograd_hook`: a forward
        # that no backward follows must send nothing.
        self._carried.begin_backward(unused)
        for index in unused:
            self._take(index)

    def _take(self, index: int) -> None:
        """Take a complete gradient into its bucket, and launch what comes after it.

        Raises:
            MarkedTwiceError: it was taken before in this backward.
        """
        carried = self._carried
        if (eager := carried.eager[index]) is not None:
            eager[0].fill(eager[1])
        if launchable := carried.queue.mark_ready(self._gradient_points[index]):
            carried.launch(launchable)

    # ---- end of backward

    def _queue_callback(self) -> None:
        self._started = True
        # Runs when the outermost backward has ended. torch's reducer waits for its buckets at the same place
        # (`Reducer::mark_variable_ready`, which queues `finalize_backward`). The engine takes callbacks only during a
        # backward.
        Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        self._started = False
        if not self.expecting:
            return
        try:
            counted = self.counting
            if self.static is not None and counted:
                self._unused = self.static.finish_counting()
                self._begin()
                # In the first backward of a static graph gradients were only counted, since a parameter used twice is
                # complete with its last visit, which nobody knew. All are sent now, as torch's
                # `Reducer::delay_all_reduce` does.
                for index in reversed(self._all):
                    if index not in self._unused:
                        self._take(index)
            if self._unfinished and self._end(complete=counted, counted=counted):
                self.expecting = self._unfinished = False
        except Exception as error:
            self.note_failure(error)
            raise

    def _end(self, *, complete: bool, counted: bool) -> bool:
        """End a backward: wait for what its end waits for, if all gradients have come; return whether that is so."""
        carried, observer = self._carried, self.launcher.observer
        begin = observer.now() if observer is not None else None
        # What forward left out is passed now: its pending updates need the buffers that this iteration fills.
        if self._carried.waits_in_forward:
            self.forward(self._all)
        # Backward may have ended without some gradients. Whether the schedule can do without them decides it: DDP
        # cannot, and the next forward raises (`check_finished`).
        if not complete and len(self.arrival) + len(self._unused) < len(self._all):
            came = {*self.arrival, *self._unused}
            if not carried.note_absent([index for index in self._all if index not in came]):
                return False
        self._sends, self._forwarded = False, set()
        carried.end_computation(counted=counted)
        if launchable := carried.queue.mark_passed(BACKWARD_END):
            carried.launch(launchable)
        if self._mixed is not None:
            self._mixed.restore()
        carried.write_back(carried.queue.take_waits(BACKWARD_END))
        carried.end_iteration(self.arrival, counted=counted)
        if observer is not None:
            observer.note_backward_end(begin)
        return True

    def _fail(self, error: ExecutionError) -> ExecutionError:
        self.note_failure(error)
        return error


def _call_both(
    on_gradient: Callable[[int], None], hook: Callable[[int, Tensor], None], index: int, parameter: Tensor
) -> None:
    on_gradient(index)
    hook(index, parameter)
