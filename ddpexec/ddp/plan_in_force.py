"""The plan in force: when a reducer takes another, and what an iteration leaves out of it.

When buckets are rebuilt is decided by `ddpsim.order.OrderPolicy`, what lies in each by `ddpsim.bucketing`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Hashable, Iterable

from ddpexec.ddp.buckets import AnyBucket, Buckets
from ddpexec.ddp.consensus import first_times, gather_times
from ddpexec.ddp.controls import Controls
from ddpexec.ddp.in_flight import InFlight
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.reducer_options import ReducerOptions
from ddpexec.ddp.runtime_stats import RuntimeStats
from ddpexec.ddp.used import UsedMap
from ddpexec.groups.process_groups import Communicator
from ddpexec.timing.observe import Observer
from ddpsim.bucketing import BucketPlan, LaunchQueue, rebuilt_plan
from ddpsim.bucketing.drop import remapped, skipped_buckets
from ddpsim.order import Arrivals, OrderPolicy


class PlanInForce(Controls):
    """The part of `Reducer` that changes with the plan: the buckets and what says when each of them may be launched.

    Args:
        model: its parameters, in registration order.
        plan: buckets of the first iteration.
        communicator: where allreduces go.
        options: see `ReducerOptions`.
        order: when to rebuild the buckets, and in which order.
        observer: takes the moments of each bucket; None takes none.
    """

    def __init__(
        self,
        model: ModelParameters,
        plan: BucketPlan,
        communicator: Communicator,
        options: ReducerOptions,
        order: OrderPolicy,
        observer: Observer | None,
    ) -> None:
        self._buckets = Buckets(model, options, communicator.rank)
        in_flight, used = InFlight(self._buckets, communicator, observer), UsedMap(model, communicator)
        super().__init__(communicator, in_flight, used, RuntimeStats(model.devices))
        self.model, self.options, self.order = model, options, order
        self.iteration = 0
        self.unused: list[int] = []
        self.buckets = self._buckets.all
        self._context: Hashable = None
        self._install(plan)

    def _install(self, plan: BucketPlan) -> None:
        self.plan = plan
        self._groups, self._mapped = plan.groups(), frozenset[int]()
        self._queue = LaunchQueue(self._groups)
        self._buckets.install(plan)
        self._eager = self._buckets.eager

    # ---- another plan

    def rebuild(self) -> bool:
        """Rebuild the buckets where the order policy says so; all ranks come to the same answer."""
        if not self.order.due():
            return False
        exchange = first_times if self.order.consensus == "rank0" and not self.options.searching else gather_times
        gather = functools.partial(exchange, communicator=self.communicator, device=self.model.tensors[0].device)
        device = self.model.tensors[0].device
        order = self.order.confer(
            self.plan.groups(), gather, lambda words: self.communicator.gather_objects(words, device)
        )
        if order is not None:
            self._install(rebuilt_plan(self.model.policy, self.options.caps, order))
        return order is not None

    def follow(self, order: OrderPolicy) -> None:
        """Rebuild the buckets when, and in the order, that `order` says from now on."""
        self.order = order

    def observe_order(self, arrival: Iterable[int]) -> None:
        """Tell the order policy of one synced backward."""
        arrivals = Arrivals(self.communicator.rank, self.iteration, tuple(arrival), context=self._context)
        self.order.observe(arrivals)
        self.expect_context(None)

    def expect_context(self, context: Hashable) -> None:
        """Take what is known of the batch of the coming iteration."""
        self._context = context
        self.order.coming(context)

    # ---- what an iteration leaves out

    def leave_out(self, parameters: Collection[int]) -> None:
        """Expect no gradient of `parameters` from the coming backward; let the others move up where that is asked."""
        super().leave_out(parameters)
        if self.options.remap_dropped and self.dropped != self._mapped:
            groups = remapped(self.model.policy, self.plan.groups(), self.dropped)
            self._groups, self._mapped = [group for group in groups if group], self.dropped
            self._queue = LaunchQueue(self._groups)
            self._buckets.remap(groups)
            self._eager = self._buckets.eager

    def _skipped(self) -> list[int]:
        # What ranks search for may differ among them; what drop says, and what the option promises, does not.
        common = self.unused if self.options.skip_all_reduce_unused_params else self.dropped
        return skipped_buckets(self._groups, common) if common else []

    def _untouched(self, bucket: AnyBucket) -> set[int]:
        """Return the bucket's parameters that no rank gave a gradient."""
        return self.used.untouched(bucket.indices) | self.dropped.intersection(bucket.indices)
