"""The reducer: gradient hooks in, allreduces out, gradients back, over whatever buckets a plan asks for.

When a bucket may be launched is decided by `ddpsim.bucketing.LaunchQueue` alone; the plan itself, and when it gives way
to another, is `PlanInForce`'s.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from ddpexec.ddp import messages
from ddpexec.ddp.gradient_hooks import hook_gradients, remove
from ddpexec.ddp.graph_search import gradient_accumulator, reachable
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.plan_in_force import PlanInForce
from ddpexec.ddp.reducer_options import ReducerOptions
from ddpexec.ddp.runtime_stats import TimerEvent
from ddpexec.ddp.used import StaticGraph
from ddpexec.errors import ExecutionError
from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan
from ddpsim.bucketing.launch import MarkedTwiceError
from ddpsim.order import OrderPolicy


class Reducer(PlanInForce):
    """Reduces the gradients of one model.

    Args:
        model: its parameters, in registration order.
        plan: buckets of the first iteration.
        communicator: where allreduces go.
        options: see `ReducerOptions`.
        order: when to rebuild the buckets, and in which order.
        observer: takes the moments of each gradient and bucket; None takes none.
    """

    def __init__(
        self,
        model: ModelParameters,
        plan: BucketPlan,
        communicator: Communicator,
        options: ReducerOptions,
        order: OrderPolicy,
        observer: Observer | None = None,
    ) -> None:
        super().__init__(model, plan, communicator, options, order, observer)
        self.launch_order: list[int] = []
        self.arrival: list[int] = []
        self.static: StaticGraph | None = None
        self._nowhere: frozenset[int] = frozenset()
        # Held, so that the nodes live as long as the reducer and are the ones met in every graph.
        self._nodes = {gradient_accumulator(parameter): i for i, parameter in enumerate(model.tensors)}
        self.expecting = self._unfinished = self._started = self._unused_marked = False
        if options.static_graph:
            self.set_static_graph()
        self.handles: list[RemovableHandle] = []
        self.observe(observer)

    def observe(self, observer: Observer | None) -> None:
        """Let `observer` take the moments from the next backward on; None takes none."""
        self.observer = self.in_flight.observer = observer
        hook = self._gradient if observer is None else functools.partial(self._observed_gradient, observer)
        remove(self.handles)
        self.handles[:] = hook_gradients(self.model, hook)

    # ---- before forward and before backward

    def start_iteration(self) -> None:
        """Count a forward that will be reduced."""
        self.iteration += 1
        self.stats.begin(self.iteration)

    def set_static_graph(self) -> None:
        """Count, in the first backward, how often each gradient comes; from then on expect the same.

        Raises:
            ExecutionError: the first iteration has begun.
        """
        if self.iteration:
            what = "set_static_graph() should be called before training loop starts"
            raise self._fail(ExecutionError(what, remedy="give static_graph=True"))
        self.options.static_graph = True
        self.static = StaticGraph(self.model, self.communicator.rank)

    def check_finished(self) -> None:
        """Raise unless the previous backward reduced everything it began to reduce."""
        rank = self.communicator.rank
        if self.static is not None and self.static.waiting and not self._started:
            raise self._fail(messages.never_began(rank))
        if self._unfinished:
            missing, options = self._queue.missing(), self.options
            if not missing:
                raise messages.broken_off(rank, self.failure)
            found, static = options.find_unused_parameters, options.static_graph
            raise self._fail(messages.never_ready(rank, missing, self.model.names, find_unused=found, static=static))

    def rebuild(self) -> bool:
        """Rebuild the buckets where the order policy says so; all ranks come to the same answer."""
        self.check_finished()
        return super().rebuild()

    def prepare_backward(self, outputs: Iterable[Tensor]) -> None:
        """Expect gradients; look for parameters that `outputs` do not depend on, where that was asked for."""
        self.stats.note(TimerEvent.BACKWARD)
        self.expecting = True
        self._started = self._unused_marked = False
        self.arrival = []
        if self.static is not None:
            self.static.restart()
        elif self.options.find_unused_parameters:
            with torch.autograd.profiler.record_function("search_unused_parameters"):
                found = reachable(outputs, self._nodes)
            unused = [index for index in range(len(self.model.tensors)) if index not in found]
            self.graph_static &= self.iteration == 1 or unused == self.unused
            self.unused = unused
        else:
            self.unused = sorted(self.dropped)
        self._nowhere = self.dropped if self.options.remap_dropped else frozenset()
        self._visits = self.static is not None or self.options.find_unused_parameters
        self._queue.reset(self._skipped())
        self.in_flight.works = []

    @property
    def counting(self) -> bool:
        """Whether a static graph is in its first backward, in which gradients are only counted."""
        return self.static is not None and self.static.counting

    def backward_started(self) -> None:
        """Reduce at the end of the outermost backward, where gradients are only counted until then."""
        if self.expecting and self.counting and not self._started:
            self._queue_callback()

    def shadow(self) -> None:
        """Take part with gradients of zero in a backward that the ranks with input reduce."""
        sent = self.in_flight.shadow()
        if self.options.searching:
            self.used.reduce(sent)
            self.used.finish(keep=False)
        self.observe_order(())

    # ---- hooks

    def _observed_gradient(self, observer: Observer, index: int, parameter: Tensor) -> None:
        begin = observer.now()
        self._gradient(index, parameter)
        observer.hooks[index] = begin, observer.now()

    def _gradient(self, index: int, parameter: Tensor) -> None:
        # The path of every gradient of every step: few lookups, no call that is not needed.
        if not self._started:
            if not self.expecting:
                if self.options.find_unused_parameters:
                    self.used.mark(index, parameter)
                return
            self._start()
        if self._visits and not self._visit(index, parameter):
            return
        self.arrival.append(index)
        if (eager := self._eager[index]) is not None:
            eager[0].fill(eager[1], self._divisor)
        try:
            launchable = self._queue.ready(index)
        except MarkedTwiceError as error:
            name = self.model.names[index]
            raise self._fail(messages.ready_twice(self.communicator.rank, index, name)) from error
        if launchable:
            self._launch(launchable)

    def _visit(self, index: int, parameter: Tensor) -> bool:
        """Note that a parameter was used; return whether its gradient is complete with that."""
        self.used.mark(index, parameter)
        if self.static is None:
            return True
        try:
            return self.static.visit(index)
        except ExecutionError as error:
            raise self._fail(error) from None

    def _start(self) -> None:
        if self.counting:
            return
        self._queue_callback()
        if not self._unused_marked:
            self._unused_marked = self._unfinished = True
            unused = [index for index in self.unused if index not in self._nowhere]
            for index in unused:
                if (eager := self._eager[index]) is not None:
                    eager[0].fill(eager[1], self._divisor)
            self._launch(self._queue.start(unused))

    @property
    def _divisor(self) -> int | None:
        return None if self.in_flight.hook else self.divisor

    def _launch(self, numbers: Sequence[int]) -> None:
        if self.stats.sampling and numbers:
            self.stats.note(TimerEvent.COMMUNICATION)
        self.in_flight.launch(numbers, self._divisor)
        if numbers and self.options.searching and self._queue.launched_all:
            self.used.reduce(len(self.in_flight.works))

    # ---- end of backward

    def _queue_callback(self) -> None:
        self._started = True
        Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        self._started = False
        if not self.expecting:
            return
        try:
            if self.counting:
                self._reduce_at_end()
            if self._unfinished and self._queue.launched_all:
                self._finish()
        except Exception as error:
            self.note_failure(error)
            raise

    def _reduce_at_end(self) -> None:
        """Reduce everything after the first backward of a static graph."""
        assert self.static is not None
        self.unused = self.static.finish_counting()
        self._unused_marked = self._unfinished = True
        for bucket in self.buckets:
            for place, index in enumerate(bucket.indices):
                if bucket.eager[place]:
                    bucket.fill(place, self._divisor)
                self._queue.ready(index)
            self._launch([bucket.number])
        self.used.reduce(len(self.in_flight.works))

    def _finish(self) -> None:
        self.stats.note(TimerEvent.COMPUTED)
        if self._before_write_back is not None:
            self._before_write_back()
        begin = self.observer.now() if self.observer is not None else None
        self.launch_order = self.in_flight.finish(self._untouched if self._visits or self.dropped else None)
        with naming_the_lost(self.communicator, "the buffer hook's synchronisation", others_code=True):
            for future in self._futures:
                future.wait()
        self.used.finish(keep=self.static is not None)
        if self.static is None or self.arrival:
            self.observe_order(self.arrival)
        self._futures = []
        self.expecting = self._unfinished = False
        self.stats.note(TimerEvent.COMMUNICATED)
        if self.observer is not None:
            self.observer.finished(begin)

    def remove_hooks(self) -> None:
        """Take the gradient hooks away; nothing is reduced any more."""
        remove(self.handles)

    def _fail(self, error: ExecutionError) -> ExecutionError:
        self.note_failure(error)
        return error
