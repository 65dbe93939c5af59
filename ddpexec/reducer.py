"""The reducer: gradient hooks in, allreduces out, gradients back, over whatever buckets a plan asks for.

When a bucket may be launched is decided by `ddpsim.bucketing.LaunchQueue` alone.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from ddpexec import messages
from ddpexec.comm_hooks import GradBucket, Hook, result_of
from ddpexec.consensus import of_rank_zero
from ddpexec.errors import ExecutionError
from ddpexec.flat import FlatBucket, SparseBucket
from ddpexec.observe import Observer
from ddpexec.parameters import ModelParameters
from ddpexec.process_groups import Communicator, Work, wait
from ddpexec.unused import gradient_accumulator, reachable
from ddpsim.bucketing import BucketCaps, BucketPlan, LaunchQueue, rebuilt_plan
from ddpsim.bucketing.launch import ReadyTwiceError


@dataclass(slots=True, kw_only=True)
class ReducerOptions:
    """What of the constructor's options concerns the reducer."""

    caps: BucketCaps
    gradient_as_bucket_view: bool = False
    find_unused_parameters: bool = False
    static_graph: bool = False
    skip_all_reduce_unused_params: bool = False
    batched_grad_copy: bool = False
    rebuild: bool = True


class Reducer:
    """Reduce the gradients of one model.

    Args:
        model: its parameters, in registration order.
        plan: buckets of the first iteration, and of all where `options.rebuild` is False.
        communicator: where allreduces go.
        options: see `ReducerOptions`.
        observer: takes the moments of each gradient and bucket; None takes none.
    """

    def __init__(
        self,
        model: ModelParameters,
        plan: BucketPlan,
        communicator: Communicator,
        options: ReducerOptions,
        observer: Observer | None = None,
    ) -> None:
        self.observer = observer
        self.model, self.communicator, self.options = model, communicator, options
        self.hook: tuple[Hook, Any] | None = None
        self.has_rebuilt = False
        self.iteration = 0
        self.arrival: list[int] = []
        self.divisor = communicator.world_size
        self._accumulators = [gradient_accumulator(parameter) for parameter in model.tensors]
        self._index_of = {node: index for index, node in enumerate(self._accumulators)}
        self._order: list[int] = []
        self._unused: list[int] = []
        self._unused_marked = False
        self._used: set[int] = set()
        self._expecting = self._unfinished = False
        self._callback_queued = False
        self._counts: list[int] | None = None
        self._remaining: list[int] = []
        self._futures: list[torch.futures.Future[Any]] = []
        self._install(plan)
        if options.static_graph:
            self.set_static_graph()
        register = nn.Parameter.register_post_accumulate_grad_hook
        hook = self._gradient if observer is None else functools.partial(self._observed_gradient, observer)
        self.handles = [
            register(parameter, functools.partial(hook, index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(model.tensors)
        ]

    # ---- before forward and before backward

    def start_iteration(self) -> None:
        """Count a forward that will be reduced."""
        self.iteration += 1

    def set_static_graph(self) -> None:
        """Count, in the first backward, how often each gradient comes; from then on expect the same.

        Raises:
            ExecutionError: the first iteration has begun.
        """
        if self.iteration:
            raise ExecutionError(
                "set_static_graph() should be called before training loop starts", remedy="give static_graph=True"
            )
        self.options.static_graph = True
        self._counts = [0] * len(self.model.tensors)

    def check_finished(self) -> None:
        """Raise unless the previous backward reduced everything it began to reduce."""
        if not self._unfinished:
            return
        missing = self._queue.missing()
        names = self.model.names
        static = self.options.static_graph
        raise messages.never_ready(
            self.communicator.rank, missing, names, find_unused=self.options.find_unused_parameters, static=static
        )

    def rebuild(self) -> bool:
        """Rebuild the buckets in the arrival order that rank 0 saw, where that is due."""
        self.check_finished()
        if not self._order or not self._rebuild_due():
            return False
        order = of_rank_zero(self._order, self.communicator, self.model.tensors[0].device)
        self._install(rebuilt_plan(self.model.policy, self.options.caps, order))
        self.has_rebuilt = True
        self._order = []
        return True

    def prepare_backward(self, outputs: Iterable[Tensor]) -> None:
        """Expect gradients; look for parameters that `outputs` do not depend on, where that was asked for."""
        self._expecting = True
        self.arrival = []
        self._unused_marked = False
        if self.options.static_graph:
            self._remaining = list(self._counts or ())
        elif self.options.find_unused_parameters:
            found = reachable(outputs, self._index_of)
            self._unused = [index for index in range(len(self.model.tensors)) if index not in found]
        self._queue.reset(self._skipped())
        self._works: list[Work | torch.futures.Future[Any] | None] = [None] * len(self.buckets)
        self._launched = 0
        self._bitmap: tuple[Tensor, Work] | None = None

    def backward_started(self) -> None:
        """Make sure that the end of this backward is seen even if no gradient comes."""
        if self._expecting and not self._callback_queued:
            self._queue_callback()

    # ---- hooks

    def _observed_gradient(self, observer: Observer, index: int, parameter: Tensor) -> None:
        begin = observer.now()
        self._gradient(index, parameter)
        observer.hooks[index] = begin, observer.now()

    def _gradient(self, index: int, _parameter: Tensor) -> None:
        if self.counting:
            self._counts[index] += 1  # type: ignore[index]
            self._used.add(index)
            return
        if not self._expecting:
            if self.options.find_unused_parameters:
                self._used.add(index)
            return
        if not self._callback_queued:
            self._queue_callback()
        if not self._unused_marked:
            self._mark_unused()
        if self._remaining and not self._last_visit(index):
            return
        self.arrival.append(index)
        self._ready(index)

    @property
    def counting(self) -> bool:
        """Whether this is the first iteration of a static graph, in which gradients are only counted."""
        return self._counts is not None and self.iteration == 1

    def _last_visit(self, index: int) -> bool:
        if self._remaining[index] == 0:
            raise messages.graph_changed(self.communicator.rank, index, self.model.names[index])
        self._remaining[index] -= 1
        return self._remaining[index] == 0

    def _ready(self, index: int) -> None:
        self._unfinished = True
        number, place = self._locators[index]
        bucket = self.buckets[number]
        if bucket.eager[place]:
            bucket.fill(place, self._divisor)
        try:
            launchable = self._queue.ready(index)
        except ReadyTwiceError as error:
            raise messages.ready_twice(self.communicator.rank, index, self.model.names[index]) from error
        if launchable:
            self._launch(launchable)

    def _mark_unused(self) -> None:
        self._unused_marked = True
        for index in self._unused:
            number, place = self._locators[index]
            if self.buckets[number].eager[place]:
                self.buckets[number].fill(place, self._divisor)
        self._launch(self._queue.start(self._unused))

    # ---- launching

    @property
    def _divisor(self) -> int | None:
        return None if self.hook else self.divisor

    def _launch(self, numbers: list[int]) -> None:
        for number in numbers:
            bucket = self.buckets[number]
            bucket.complete(self._divisor)
            self._works[number] = self._reduce(bucket)
            self._launched += 1
        if numbers and self.options.find_unused_parameters and self._queue.launched_all:
            self._launch_bitmap()

    def _reduce(self, bucket: FlatBucket | SparseBucket) -> Work | torch.futures.Future[Any]:
        observer = self.observer
        if observer is None:
            return self._send(bucket)
        begin = observer.now()
        work = self._send(bucket)
        observer.launched(bucket.number, bucket.indices, bucket.size_bytes, begin, work)
        return work

    def _send(self, bucket: FlatBucket | SparseBucket) -> Work | torch.futures.Future[Any]:
        if self.hook is None:
            return self.communicator.all_reduce(bucket.buffer, self._launched)
        hook, state = self.hook
        views = bucket.views if isinstance(bucket, FlatBucket) else [bucket.buffer]
        last = bucket.number == len(self.buckets) - 1
        return hook(state, GradBucket(bucket.number, bucket.buffer, views, bucket.parameters, last))

    def _launch_bitmap(self) -> None:
        used = torch.zeros(len(self.model.tensors), dtype=torch.int32)
        used[list(self._used.union(self.arrival))] = 1
        used = used.to(self.communicator.device_for(self.model.tensors[0].device))
        self._bitmap = used, self.communicator.all_reduce(used, self._launched)

    # ---- end of backward

    def _queue_callback(self) -> None:
        self._callback_queued = True
        Variable._execution_engine.queue_callback(self._backward_ended)

    def _backward_ended(self) -> None:
        self._callback_queued = False
        if self.counting:
            self._reduce_at_end()
        elif self._expecting:
            self._take_undefined()
        if self._expecting and self._unfinished and self._queue.launched_all:
            self._finish()

    def _take_undefined(self) -> None:
        """Mark ready the parameters that this backward visited without giving them a gradient."""
        if self._queue.launched_all or self._remaining:
            return
        if not self._visited():
            return
        if not self._unused_marked:
            self._mark_unused()
        for index in self._visited():
            self._ready(index)

    def _visited(self) -> list[int]:
        return [i for i in self._queue.missing() if torch._C._will_engine_execute_node(self._accumulators[i])]

    def _reduce_at_end(self) -> None:
        counts = self._counts or []
        self._unused = [index for index, count in enumerate(counts) if count == 0]
        self._unused_marked = self._unfinished = True
        for number, bucket in enumerate(self.buckets):
            for place, eager in enumerate(bucket.eager):
                if eager:
                    bucket.fill(place, self._divisor)
            for index in bucket.indices:
                self._queue.ready(index)
            bucket.complete(self._divisor)
            self._works[number] = self._reduce(bucket)
            self._launched += 1
        self._launch_bitmap()

    def _finish(self) -> None:
        observer = self.observer
        begin = observer.now() if observer is not None else None
        pending = [(self.buckets[number], work) for number, work in enumerate(self._works) if work is not None]
        for position, (bucket, work) in enumerate(pending):
            start = observer.now() if observer is not None else None
            reduced = self._wait(work, bucket)
            if observer is not None:
                observer.waited(position, start)
            bucket.write_back(reduced, self._untouched(bucket))
            if observer is not None:
                observer.written(position)
        for future in self._futures:
            future.wait()
        if self._bitmap is not None:
            wait(self._bitmap[1], "the allreduce of the used-parameter bitmap")
        self._record_order()
        self._futures = []
        self._used = set()
        self._expecting = self._unfinished = False
        if observer is not None:
            observer.finished(begin)

    def _wait(self, work: Work | torch.futures.Future[Any], bucket: FlatBucket | SparseBucket) -> Tensor:
        if isinstance(work, torch.futures.Future) or self.hook is not None:
            return result_of(cast("torch.futures.Future[Any]", work), bucket.number)
        wait(work, f"the allreduce of bucket {bucket.number} ({bucket.size_bytes:,} B)")
        return bucket.buffer

    def _untouched(self, bucket: FlatBucket | SparseBucket) -> set[int]:
        """Return the bucket's parameters that no rank used; asks the other ranks only where this one used not all."""
        if self._bitmap is None:
            return set()
        idle = set(bucket.indices) - self._used.union(self.arrival)
        if not idle:
            return idle
        wait(self._bitmap[1], "the allreduce of the used-parameter bitmap")
        used = self._bitmap[0].tolist()
        return {index for index in idle if used[index] == 0}

    # ---- buckets

    def _install(self, plan: BucketPlan) -> None:
        options, tensors = self.options, self.model.tensors
        self.plan = plan
        self._queue = LaunchQueue(plan.groups())
        self.buckets: list[FlatBucket | SparseBucket] = []
        for number, bucket in enumerate(plan.buckets):
            if self.model.policy[bucket.parameters[0]].sparse:
                name = self.model.names[bucket.parameters[0]]
                self.buckets.append(SparseBucket(number, bucket, tensors, name))
            else:
                as_view, batched = options.gradient_as_bucket_view, options.batched_grad_copy
                self.buckets.append(FlatBucket(number, bucket, tensors, as_view=as_view, batched=batched))
        places = {i: (n, p) for n, bucket in enumerate(plan.buckets) for p, i in enumerate(bucket.parameters)}
        self._locators = [places[index] for index in range(len(tensors))]

    def _rebuild_due(self) -> bool:
        once = self.options.static_graph or not self.options.find_unused_parameters
        return self.options.rebuild and once and not self.has_rebuilt

    def _record_order(self) -> None:
        if self._rebuild_due() and not self.counting:
            seen = set(self.arrival)
            self._order = self.arrival + [i for i in range(len(self.model.tensors)) if i not in seen]

    def _skipped(self) -> list[int]:
        if not self.options.skip_all_reduce_unused_params:
            return []
        unused = set(self._unused)
        return [number for number, bucket in enumerate(self.buckets) if unused.issuperset(bucket.indices)]
