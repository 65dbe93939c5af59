"""The reducer: DDP's buckets, sent as their gradients come, written back when backward has ended, rebuilt between.

When a bucket may be launched is decided by `ddpsim.bucketing.LaunchQueue` alone, when buckets are rebuilt by
`ddpsim.order.OrderPolicy`, what lies in each by `ddpsim.bucketing`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ddpexec.ddp.averaging import averaging
from ddpexec.ddp.buckets import AnyBucket, Buckets
from ddpexec.ddp.comm_hooks import Hook, by_hook
from ddpexec.ddp.consensus import first_times, gather_times
from ddpexec.ddp.launcher import Launcher, Sending
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.reducer_options import ReducerOptions
from ddpexec.ddp.runtime_stats import RuntimeStats, TimerEvent
from ddpexec.ddp.used import UsedMap
from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator, Work
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan, LaunchQueue, rebuilt_plan
from ddpsim.bucketing.drop import remapped, skipped_buckets
from ddpsim.order import Arrivals, OrderPolicy


class Reducer:
    """Reduces the gradients of one model by buckets; an `Executor` says which gradients have come.

    Args:
        model: its parameters, in registration order.
        plan: buckets of the first iteration.
        communicator: where allreduces go.
        options: see `ReducerOptions`.
        order: when to rebuild the buckets, and in which order.
        observer: takes the moments of each bucket; None takes none.

    Attributes:
        iteration: forwards whose gradients are reduced, so far.
        arrival, unused: registration indices of the last backward: as gradients came, and those that did not.
        launch_order: numbers of the buckets, as the last backward launched them.
        used: which parameters ranks used.
        stats: times of sampled iterations.
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
        self.model, self.communicator, self.options, self.order = model, communicator, options, order
        self._made = Buckets(model, options, communicator.rank)
        self.buckets = self._made.all
        self.launcher = Launcher(communicator, observer)
        self._hook: tuple[Hook, object] | None = None
        self._after_bucket: Callable[[list[nn.Parameter]], None] | None = None
        self.used, self.stats = UsedMap(model, communicator), RuntimeStats(model.devices)
        self.iteration = 0
        self._made.divide_by(communicator.world_size)
        self.launch_order: list[int] = []
        self.arrival: Sequence[int] = []
        self.unused: Sequence[int] = []
        self.dropped: frozenset[int] = frozenset()
        self.hook_name = ""
        self._graph_static, self._averages = True, False
        self._before_write_back: Callable[[], None] | None = None
        self._futures: list[torch.futures.Future[Any]] = []
        self._context: Hashable = None
        self._install(plan)

    def _install(self, plan: BucketPlan) -> None:
        self.plan, self._mapped = plan, frozenset[int]()
        self._made.install(plan)
        self._lie_in(plan.groups())

    def _lie_in(self, groups: Sequence[Sequence[int]]) -> None:
        self._groups, self._queue, self._eager = groups, LaunchQueue(groups), self._made.eager
        self.launcher.sendings = [self._sending(bucket, self.launcher) for bucket in self.buckets]

    # ---- told from outside

    def observe(self, observer: Observer | None) -> None:
        """Let `observer` take the moments of buckets from the next backward on; None takes none."""
        self.launcher.observer = observer

    @property
    def hooked(self) -> bool:
        """Whether a communication hook reduces the buckets."""
        return self._hook is not None

    def use_hook(self, hook: Hook, state: object, name: str = "") -> None:
        """Let `hook(state, bucket)` reduce each bucket; `name` is what logging data call it, else its own."""
        self._hook = hook, state
        self.hook_name = name or getattr(hook, "__qualname__", str(hook))
        self._made.divide_by(1)
        self._lie_in(self._groups)

    def divide_by(self, ranks: int) -> None:
        """Divide the coming sums by `ranks`, where no communication hook does as it likes."""
        if not self.hooked:
            self._made.divide_by(ranks)

    def average_after(self, dtype: torch.dtype | None, before_write_back: Callable[[], None] | None = None) -> None:
        """Sum buckets, in `dtype` where given, before they are divided by the number of ranks, as torch's hooks do.

        `before_write_back` is called once all buckets are launched, before the first is written back.
        """
        self.use_hook(averaging(self.communicator, dtype), None)
        self._averages, self._before_write_back = True, before_write_back

    def step_each_bucket(self, step: Callable[[Sequence[nn.Parameter]], None]) -> None:
        """Call `step` with the parameters of each bucket once it is written back, summed and then divided."""
        self.average_after(None)
        self._after_bucket = step

    def take_over(self, former: Reducer) -> None:
        """Go on with the sampling rate and the user's communication hook of `former`."""
        self.stats.rate = former.stats.rate
        if former._hook is not None and not former._averages and not self._averages:
            self.use_hook(*former._hook, former.hook_name)

    def leave_out(self, parameters: Collection[int]) -> None:
        """Expect no gradient of `parameters` from the coming backward, on no rank.

        The others move up into the memory of the first buckets where that is asked.
        """
        self.dropped = frozenset(parameters)
        if self.options.remap_dropped and self.dropped != self._mapped:
            groups = remapped(self.model.policy, self.plan.groups(), self.dropped)
            self._mapped = self.dropped
            self._made.remap(groups)
            self._lie_in([group for group in groups if group])

    def await_also(self, futures: Iterable[torch.futures.Future[Any]]) -> None:
        """Wait for `futures` at the end of the coming backward."""
        self._futures += futures

    def _get_local_used_map(self) -> Tensor | None:  # this and the next: of torch's C++ reducer, by these names
        return self.used.summed

    def _ddp_graph_static(self) -> bool:
        return self._graph_static

    # ---- before forward

    def start_iteration(self) -> None:
        """Count a forward that will be reduced."""
        self.iteration += 1
        self.stats.begin(self.iteration)

    def rebuild(self) -> bool:
        """Rebuild the buckets where the order policy says so; all ranks come to the same answer."""
        if not self.order.due():
            return False
        communicator, device = self.communicator, self.model.tensors[0].device
        exchange = first_times if self.order.consensus == "rank0" and not self.options.searching else gather_times
        gather = functools.partial(exchange, communicator=communicator, device=device)
        words = functools.partial(communicator.gather_objects, device=device)
        order = self.order.confer(self.plan.groups(), gather, words)
        if order is not None:
            self._install(rebuilt_plan(self.model.policy, self.options.caps, order))
        return order is not None

    def use_plan(self, plan: BucketPlan, order: OrderPolicy) -> None:
        """Reduce by the buckets of `plan` from the coming iteration on, and rebuild them by `order`; between two."""
        self.order = order
        self._install(plan)

    def expect_context(self, context: Hashable) -> None:
        """Take what is known of the batch of the coming iteration."""
        self._context = context
        self.order.coming(context)

    # ---- what the executor says

    def coming(self, unused: Sequence[int]) -> None:
        """Expect a backward, in which the parameters of these registration indices will get no gradient."""
        self.stats.note(TimerEvent.BACKWARD)
        if self.options.searching:
            self._graph_static &= self.iteration == 1 or list(unused) == self.unused
        self.unused, self.arrival = list(unused), []
        # What ranks search for may differ among them; what drop says, and what the option promises, does not.
        common = self.unused if self.options.skip_all_reduce_unused_params else self.dropped
        self._queue.reset(skipped_buckets(self._groups, common) if common else [])
        self.launcher.begin()
        self.launcher.forget()

    def began(self, unused: Sequence[int]) -> None:
        """Take the gradients of `unused` as they are, and launch the buckets that are complete with them."""
        nowhere = self.dropped if self.options.remap_dropped else frozenset()
        self.unused = list(unused)
        waited = [index for index in unused if index not in nowhere]
        for index in waited:
            if (eager := self._eager[index]) is not None:
                eager[0].fill(eager[1])
        self._launch(self._queue.start(waited))

    def take(self, index: int) -> None:
        """Take a gradient, and launch the buckets that are complete with it."""
        if (eager := self._eager[index]) is not None:
            eager[0].fill(eager[1])
        if launchable := self._queue.ready(index):
            self._launch(launchable)

    def ended(self, arrival: Sequence[int], *, counted: bool) -> bool:
        """Write the gradients back, if all buckets are launched; return whether they are."""
        if not self._queue.launched_all:
            return False
        if counted:
            self.used.reduce(len(self.launcher.launched))
        self.stats.note(TimerEvent.COMPUTED)
        if self._before_write_back is not None:
            self._before_write_back()
        observer, options = self.launcher.observer, self.options
        begin = observer.now() if observer is not None else None
        some = options.find_unused_parameters or options.static_graph or self.dropped
        self._finish(self._untouched if some else None)
        self.launch_order = self.launcher.launched
        with naming_the_lost(self.communicator, "the buffer hook's synchronisation", others_code=True):
            for future in self._futures:
                future.wait()
        self.used.finish(keep=options.static_graph)
        self.arrival, self._futures = arrival, []
        if not options.static_graph or arrival:
            self._observe_order(arrival)
        self.stats.note(TimerEvent.COMMUNICATED)
        if observer is not None:
            observer.finished(begin)
        return True

    def shadow(self, *, counted: bool) -> None:
        """Send gradients of zero, and leave this rank's own alone."""
        zeros = Launcher(self.communicator, None)
        zeros.sendings = [self._sending(bucket.of_zeros(), zeros, filled=True) for bucket in self.buckets]
        zeros.launch(range(len(self.buckets)))
        zeros.wait_all()
        if counted or self.options.searching:
            self.used.reduce(len(zeros.launched))
            self.used.finish(keep=self.options.static_graph)
        self._observe_order(())

    def missing(self) -> Sequence[int]:
        """Return the parameters for want of whose gradients not all buckets were launched."""
        return self._queue.missing()

    # ---- of one backward

    def _sending(self, bucket: AnyBucket, launcher: Launcher, *, filled: bool = False) -> Sending:
        """Return what the launch of `bucket` does; `filled` is whether the gradients lie in it."""
        fill = None if filled else bucket.complete
        if self._hook is not None:
            what = f"the communication hook's reduction of bucket {bucket.number}"
            hooked = by_hook(*self._hook, bucket, last=bucket.number == len(self.buckets) - 1)
            return Sending(what, bucket.indices, bucket.size_bytes, hooked, fill=fill, others_code=True)
        communicator, what = self.communicator, f"the allreduce of bucket {bucket.number} ({bucket.size_bytes:,} B)"

        def send(_: Sequence[Work]) -> Work:
            return communicator.all_reduce(bucket.buffer, len(launcher.launched))

        return Sending(what, bucket.indices, bucket.size_bytes, send, fill=fill)

    def _launch(self, numbers: Sequence[int]) -> None:
        if self.stats.sampling and numbers:
            self.stats.note(TimerEvent.COMMUNICATION)
        self.launcher.launch(numbers)
        if numbers and self.options.searching and self._queue.launched_all:
            self.used.reduce(len(self.launcher.launched))

    def _finish(self, untouched: Callable[[AnyBucket], Collection[int]] | None) -> None:
        """Wait for every bucket and write it back, in launch order.

        `untouched` tells which parameters of a bucket are to stay as they are; None where no parameter of the model is.
        Small neighbours are then written back together, unless something is to be done after each bucket.
        """
        launcher, made = self.launcher, self._made
        if untouched is None and not self.hooked and len(launcher.launched) == len(made.all):
            for run in made.runs:
                numbers = range(run.buckets[0].number, run.buckets[-1].number + 1)
                launcher.wait(numbers)
                run.write_back()
                self._note_written(numbers)
            return
        for position, number in enumerate(launcher.launched):
            launcher.wait((number,))
            bucket = made.all[number]
            bucket.write_back(() if untouched is None else untouched(bucket))
            if self._after_bucket is not None:
                self._after_bucket(bucket.parameters)
            self._note_written((position,))

    def _note_written(self, positions: Iterable[int]) -> None:
        if (observer := self.launcher.observer) is not None:
            for position in positions:
                observer.written(position)

    def _untouched(self, bucket: AnyBucket) -> set[int]:
        """Return the bucket's parameters that no rank gave a gradient."""
        return self.used.untouched(bucket.indices) | self.dropped.intersection(bucket.indices)

    def _observe_order(self, arrival: Iterable[int]) -> None:
        """Tell the order policy of one synced backward."""
        arrivals = Arrivals(self.communicator.rank, self.iteration, tuple(arrival), context=self._context)
        self.order.observe(arrivals)
        self.expect_context(None)
