"""The executor: autograd's hooks drive what is sent in a backward, whether DDP's buckets or any schedule's messages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle

from ddpexec.ddp import messages
from ddpexec.ddp.gradient_hooks import hook_gradients, remove
from ddpexec.ddp.graph_search import gradient_accumulator, reachable
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.used import StaticGraph, UsedMap
from ddpexec.errors import ExecutionError
from ddpexec.timing.observe import Observer
from ddpsim.bucketing.launch import MarkedTwiceError


class Reduction(Protocol):
    """What an executor drives: it launches messages as gradients come, and waits for them when backward has ended."""

    def coming(self, unused: Sequence[int]) -> None:
        """Expect a backward, in which the parameters of these registration indices will get no gradient."""

    def began(self, unused: Sequence[int]) -> None:
        """Take it that the gradients of `unused` are not to be waited for: the first of the others has come."""

    def take(self, index: int) -> None:
        """Take a complete gradient, and launch what comes after it.

        Raises:
            MarkedTwiceError: it was taken before in this backward.
        """

    def ended(self, arrival: Sequence[int], *, counted: bool) -> bool:
        """Wait for what was launched, if all was; return whether that is so.

        Args:
            arrival: registration indices in the order in which gradients came.
            counted: whether this was the first backward of a static graph, after which everything was taken at once.
        """

    def shadow(self, *, counted: bool) -> None:
        """Take part in a backward of other ranks with gradients of zero."""

    def missing(self) -> Sequence[int]:
        """Return the registration indices for want of whose gradients not all was launched."""


class Executor:
    """Drives the messages of one backward after another.

    Args:
        model: its parameters, in registration order.
        reducer: launches the messages and waits for them.
        used: which parameters a backward visited; the reducer tells the other ranks of it.
        rank: that errors name.
        find_unused: whether the graph is searched, in each forward, for parameters that will get no gradient.
        static_graph: whether every backward visits each parameter as often as the first does; then nothing is searched.
        told: called with the registration index of every gradient, whether it is sent or not.
        observer: takes the moments of each gradient; None takes none.

    Attributes:
        expecting: whether a backward that is reduced is to come, or under way.
        arrival: registration indices of the last backward, in the order in which gradients came.
        failure: what went wrong, which the next forward and logging data name; empty where nothing has.
        handles: of the hooks on gradients.
    """

    def __init__(
        self,
        model: ModelParameters,
        reducer: Reduction,
        used: UsedMap,
        rank: int,
        *,
        find_unused: bool,
        static_graph: bool,
        told: Callable[[int], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.model, self._reducer, self._used, self._rank = model, reducer, used, rank
        self._find_unused, self._told = find_unused, told
        self.static: StaticGraph | None = StaticGraph(model, rank) if static_graph else None
        # Held, so that the nodes live as long as the executor and are the ones met in every graph.
        self._nodes = {gradient_accumulator(parameter): i for i, parameter in enumerate(model.tensors)}
        self.arrival: list[int] = []
        self.failure = ""
        self._unused: Sequence[int] = ()
        self.expecting = self._visits = self._unfinished = self._started = self._began = False
        self.handles: list[RemovableHandle] = []
        self.observe(observer)

    def observe(self, observer: Observer | None) -> None:
        """Let `observer` take the moments of gradients from the next backward on; None takes none."""
        hook = self._gradient if observer is None else functools.partial(self._observed_gradient, observer)
        if self._told is not None:
            hook = functools.partial(_telling, self._told, hook)
        self.remove_hooks()
        self.handles[:] = hook_gradients(self.model, hook)

    def remove_hooks(self) -> None:
        """Take the gradient hooks away; nothing is reduced any more."""
        remove(self.handles)

    def note_failure(self, error: Exception) -> None:
        """Name `error` in logging data, and where the next forward finds a backward broken off."""
        self.failure = str(error)  # not itself: the frames of its traceback hold the wrapper

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
            raise self._fail(messages.never_began(self._rank))
        if self._unfinished:
            missing, static = self._reducer.missing(), self.static is not None
            if not missing:
                raise messages.broken_off(self._rank, self.failure)
            names, found = self.model.names, self._find_unused
            raise self._fail(messages.never_ready(self._rank, missing, names, find_unused=found, static=static))

    def expect(self, outputs: Iterable[Tensor], left_out: Iterable[int] = ()) -> None:
        """Expect gradients of all parameters but those `left_out`, or that `outputs` are seen not to depend on."""
        self.expecting = True
        self._started = self._began = False
        self.arrival = []
        if self.static is not None:
            self.static.restart()
        elif self._find_unused:
            with torch.autograd.profiler.record_function("search_unused_parameters"):
                found = reachable(outputs, self._nodes)
            self._unused = [index for index in range(len(self.model.tensors)) if index not in found]
        else:
            self._unused = sorted(left_out)
        self._visits = self.static is not None or self._find_unused
        self._reducer.coming(self._unused)

    def expect_none(self) -> None:
        """Let the gradients of the coming backward add up."""
        self.expecting = False

    def backward_started(self) -> None:
        """Note that the outermost backward of a static graph has begun, where its gradients are to be reduced."""
        if self.expecting and self.static is not None and not self._started:
            self._queue_callback()
            if not self.counting:
                self._begin()

    def shadow(self) -> None:
        """Take part with gradients of zero in a backward that the ranks with input reduce."""
        counted = self.counting
        if self.static is not None and counted:
            self._unused = self.static.finish_counting()
        self._reducer.shadow(counted=counted)

    # ---- hooks

    def _observed_gradient(self, observer: Observer, index: int, parameter: Tensor) -> None:
        begin = observer.now()
        self._gradient(index, parameter)
        observer.hooks[index] = begin, observer.now()

    def _gradient(self, index: int, parameter: Tensor) -> None:
        # The path of every gradient of every step: few lookups, no call that is not needed.
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
        try:
            self._reducer.take(index)
        except MarkedTwiceError as error:
            raise self._fail(messages.ready_twice(self._rank, index, self.model.names[index])) from error

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
            self._reducer.began(self._unused)

    # ---- end of backward

    def _queue_callback(self) -> None:
        self._started = True
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
                for index in reversed(range(len(self.model.tensors))):
                    if index not in self._unused:
                        self._reducer.take(index)
            if self._unfinished and self._reducer.ended(self.arrival, counted=counted):
                self.expecting = self._unfinished = False
        except Exception as error:
            self.note_failure(error)
            raise

    def _fail(self, error: ExecutionError) -> ExecutionError:
        self.note_failure(error)
        return error


def _telling(told: Callable[[int], None], hook: Callable[[int, Tensor], None], index: int, parameter: Tensor) -> None:
    told(index)
    hook(index, parameter)
