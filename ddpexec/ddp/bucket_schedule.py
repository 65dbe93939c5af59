"""DDP's buckets as the schedule in force: written back when backward has ended, rebuilt or left out between two.

When a bucket may be launched is decided by `ddpsim.bucketing.LaunchQueue` alone, when buckets are rebuilt by
`ddpsim.bucketing.order.policy.OrderPolicy`, what lies in each by `ddpsim.bucketing`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from ddpexec.ddp.active_schedule import ActiveSchedule
from ddpexec.ddp.buckets import AnyBucket, Buckets, Eager, ReducerOptions
from ddpexec.ddp.comm_hooks import Hook, reduce_by_hook
from ddpexec.ddp.flat import make_empty_gradient
from ddpexec.ddp.launcher import Sending
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator, Work
from ddpsim.bucketing import BucketPlan, rebuilt_plan
from ddpsim.bucketing.drop import remap_gradients, skipped_buckets
from ddpsim.bucketing.order.arrivals import Arrivals
from ddpsim.bucketing.order.policy import OrderPolicy
from ddpsim.schedules.schedule import queue_of_buckets


class BucketSchedule(ActiveSchedule):
    """The schedule of DDP's buckets, which an `Executor` carries out.

    Args:
        model: its parameters, in registration order.
        plan: buckets of the first iteration.
        communicator: where allreduces go.
        options: see `ReducerOptions`.
        order: when to rebuild the buckets, and in which order.
    """

    def __init__(
        self,
        model: ModelParameters,
        plan: BucketPlan,
        communicator: Communicator,
        options: ReducerOptions,
        order: OrderPolicy,
    ) -> None:
        super().__init__(model, plan, communicator, options)
        self.order = order
        self._made = Buckets(model, options, communicator.rank)
        self.buckets = self._made.all
        self._after_bucket: Callable[[list[nn.Parameter]], None] | None = None
        self._made.divide_by(communicator.world_size)
        self._graph_static, self._skips = True, False
        self._context: Hashable = None
        self._install(plan)

    def _install(self, plan: BucketPlan) -> None:
        self.plan, self._mapped = plan, frozenset[int]()
        self._made.install(plan)
        self._move_into(plan.groups())

    def _move_into(self, groups: Sequence[Sequence[int]]) -> None:
        # Buckets, queue and sendings are numbered alike; all three change here together, between two iterations.
        self._groups, self.queue = groups, queue_of_buckets([*map(tuple, groups)])
        self.eager: Sequence[Eager] = self._made.eager
        self.launcher.sendings = [self._make_sending(bucket) for bucket in self.buckets]

    # ---- told from outside

    def use_hook(self, hook: Hook, state: object, name: str = "") -> None:
        """Let `hook(state, bucket)` reduce each bucket; `name` is what logging data call it, else its own."""
        super().use_hook(hook, state, name)
        self._made.divide_by(1)
        self._move_into(self._groups)

    def divide_by(self, ranks: int) -> None:
        """Divide the coming sums by `ranks`, where no communication hook does as it likes."""
        if not self.hooked:
            self._made.divide_by(ranks)

    def step_each_bucket(self, step: Callable[[Sequence[nn.Parameter]], None]) -> None:
        """Call `step` with the parameters of each bucket once it is written back, summed and then divided."""
        self.average_after(None)
        self._after_bucket = step

    def take_over(self, former: BucketSchedule) -> None:
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
            groups = remap_gradients(self.model.policy, self.plan.groups(), self.dropped)
            self._mapped = self.dropped
            self._made.remap(groups)
            self._move_into([group for group in groups if group])

    def _ddp_graph_static(self) -> bool:  # of torch's C++ reducer, by this name
        return self._graph_static

    # ---- before forward

    def rebuild(self) -> bool:
        """Rebuild the buckets where the order policy says so; all ranks come to the same answer."""
        if not self.order.due():
            return False
        # `due` counts iterations, so it says the same on every rank; only then do ranks exchange what they expect.
        words = functools.partial(self.communicator.gather_objects, device=self.model.tensors[0].device)
        order = self.order.confer(self.plan.groups(), self._gather_times, words)
        self.rebuilds = self.order.rebuilds
        if order is not None:
            self._install(rebuilt_plan(self.model.policy, self.options.caps, order))
        return order is not None

    def _gather_times(self, times: Sequence[float]) -> list[list[float]]:
        """Return every rank's `times`, by rank; rank 0's alone where its word is law, which takes one broadcast."""
        communicator = self.communicator
        if communicator.world_size == 1:
            return [list(times)]
        mine = torch.tensor(times, dtype=torch.float64, device=communicator.device_for(self.model.tensors[0].device))
        with name_lost_ranks(communicator, "the consensus on the order of gradients"):
            if self.order.consensus != "rank0" or self.options.searching:
                return [row.tolist() for row in communicator.gather(mine)]
            communicator.broadcast(mine, 0)
            return [mine.tolist()]

    def use_plan(self, plan: BucketPlan, order: OrderPolicy) -> None:
        """Reduce by the buckets of `plan` from the coming iteration on, and rebuild them by `order`; between two."""
        self.order, self.rebuilds = order, order.rebuilds
        self._install(plan)

    def expect_context(self, context: Hashable) -> None:
        """Take what is known of the batch of the coming iteration."""
        self._context = context
        self.order.coming(context)

    # ---- what the executor says

    def expect_backward(self, unused: Sequence[int]) -> None:
        """Expect a backward, in which the parameters of these registration indices will get no gradient."""
        self._tells_used = self.options.searching
        if self._tells_used:
            self._graph_static &= self.iteration == 1 or list(unused) == self.unused
        super().expect_backward(unused)
        # What ranks search for may differ among them; what drop says, and what the option promises, does not.
        common = self.unused if self.options.skip_all_reduce_unused_params else self.dropped
        # A bucket may be skipped only where every rank skips it: one that is sent on one rank alone is waited for for
        # ever.
        skipped = skipped_buckets(self._groups, common) if common else []
        if skipped or self._skips:
            self.queue.reset(skipped)
        self._skips = bool(skipped)

    def end_computation(self, *, counted: bool) -> None:
        """Share what a static graph uses, once it is counted."""
        if counted:
            self.used.reduce(len(self.launcher.launched))
        super().end_computation(counted=counted)

    def write_back(self, numbers: Sequence[int]) -> None:
        """Wait for every bucket and write it back, in launch order.

        Small neighbours are written back together, unless parameters may have to stay as they are, or something is to
        be done after each bucket.
        """
        launcher, buckets, options = self.launcher, self._made, self.options
        some = options.find_unused_parameters or options.static_graph or self.dropped
        if not some and not self.hooked and len(numbers) == len(buckets.all):
            # Buckets that lie one after the other in memory are copied out by one call, once the last of them is there.
            for run in buckets.runs:
                together = range(run.buckets[0].number, run.buckets[-1].number + 1)
                launcher.wait(together)
                run.write_back()
                self._note_written(together)
            return
        for position, number in enumerate(numbers):
            launcher.wait((number,))
            bucket = buckets.all[number]
            untouched = self.used.find_untouched(bucket.indices) | self.dropped if some else ()
            bucket.write_back(untouched)
            if self._after_bucket is not None:
                self._after_bucket(bucket.parameters)
            self._note_written((position,))

    def end_iteration(self, arrival: Sequence[int], *, counted: bool) -> None:
        """End an iteration: its futures, what ranks used, and the order in which gradients came."""
        self.used.finish(keep=self.options.static_graph)
        if not counted:
            self.order.observe(Arrivals(self.communicator.rank, self.iteration, tuple(arrival), context=self._context))
            self.expect_context(None)
        super().end_iteration(arrival, counted=counted)

    @contextmanager
    def zero_gradients(self) -> Iterator[None]:
        """Let all gradients be of zeros inside, and this rank's own be as they were behind."""
        own = [(tensor, tensor.grad) for tensor in self.model.tensors]
        # Views lie where the zeros and their sums will.
        views = self.options.gradient_as_bucket_view
        values = [grad.clone() if views and grad is not None and not grad.is_sparse else None for _, grad in own]
        for (tensor, _), known in zip(own, self.model.policy, strict=True):
            tensor.grad = make_empty_gradient(tensor) if known.sparse else None
        try:
            yield
        finally:
            for (tensor, grad), value in zip(own, values, strict=True):
                if grad is not None and value is not None:
                    grad.copy_(value)
                tensor.grad = grad

    # ---- of one backward

    def _make_sending(self, bucket: AnyBucket) -> Sending:
        """Return what the launch of `bucket` does."""
        if self._hook is not None:
            what = f"the communication hook's reduction of bucket {bucket.number}"
            hooked = reduce_by_hook(*self._hook, bucket, last=bucket.number == len(self.buckets) - 1)
            return Sending(what, bucket.indices, bucket.size_bytes, hooked, fill=bucket.complete, others_code=True)
        communicator, launcher = self.communicator, self.launcher
        what = f"the allreduce of bucket {bucket.number} ({bucket.size_bytes:,} B)"

        def send(_: Sequence[Work]) -> Work:
            return communicator.all_reduce(bucket.buffer, len(launcher.launched))

        return Sending(what, bucket.indices, bucket.size_bytes, send, fill=bucket.complete, device=self._device(bucket))

    def _device(self, bucket: AnyBucket) -> torch.device | None:
        """Return the GPU that a bucket is on, of a rank that has several; None where it has one."""
        tensors = self.model.tensors
        return tensors[bucket.indices[0]].device if tensors[0].is_cuda and len(self.model.devices) > 1 else None

    def _note_written(self, positions: Iterable[int]) -> None:
        if (observer := self.launcher.observer) is not None:
            for position in positions:
                observer.note_written(position)
