"""The buckets in force in each iteration: fixed, or rebuilt as an order policy says; and when ranks confer on it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddpsim.bucketing import BucketPlan, rebuilt_plan
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.workload import Workload
from ddpsim.workload.iteration_profile import IterationProfile

if TYPE_CHECKING:
    from ddpsim.bucketing.order.replay import OrderExchange
    from ddpsim.workload.order_trace import Context


@dataclass(frozen=True, slots=True)
class PolicyView:
    """What the policy of one rank sees: the pace of each iteration, and the context of its batch where it is known."""

    pace: Callable[[int], IterationProfile]
    context: Callable[[int], Context] = lambda iteration: None


@dataclass(frozen=True, slots=True)
class Plans:
    """Plans are buckets by iteration, and the conferences that led to them.

    Attributes:
        starts: iterations from which each of `plans` is in force, ascending from 0.
        held: by the iteration before which ranks conferred.
    """

    starts: Sequence[int]
    plans: Sequence[BucketPlan]
    held: Mapping[int, OrderExchange] = field(default_factory=dict)

    def plan(self, iteration: int) -> BucketPlan:
        """Return the buckets of an iteration."""
        return self.plans[bisect_right(self.starts, iteration) - 1]

    @property
    def rebuilds(self) -> int:
        """How many conferences built anew."""
        return sum(held.decision.order is not None for held in self.held.values())


def plans_of(
    options: Options, workload: Workload, seen: Sequence[PolicyView], synced: Iterable[int], total: int
) -> Plans:
    """Return the plans of all iterations.

    In which order hooks fire is the workload's alone, so that the arrivals of a whole run are known before it is
    simulated, and `ddpsim.bucketing.order.conferences` says when the policy rebuilds for them.

    Args:
        options: name the policy; without one the plan is the same throughout.
        workload: whose parameters.
        seen: by each rank that has a say.
        synced: iterations whose gradients are reduced, ascending; only these are watched.
        total: iterations in all.

    Raises:
        InputError: a predictor that failed.
    """
    if options.order is None:
        return Plans([0], [options.bucket_plan(workload)])

    from ddpsim.bucketing.order.arrivals import Arrivals
    from ddpsim.bucketing.order.replay import conferences

    def assign(order: Sequence[int]) -> list[tuple[int, ...]]:
        return rebuilt_plan(workload.parameters, options.caps, order).groups()

    arrivals = [
        Arrivals(rank, k, each.pace(k).order, context=each.context(k)) for k in synced for rank, each in enumerate(seen)
    ]
    first = options.first_plan(workload.parameters, options.plan)
    policies = [policy for _ in seen if (policy := options.order_policy(len(workload.parameters))) is not None]
    starts, plans, held = [0], [first], {}
    for conference in conferences(arrivals, policies, first.groups(), assign):
        if conference.iteration < total:
            held[conference.iteration] = conference
        if (order := conference.decision.order) is not None:
            starts.append(conference.iteration)
            plans.append(rebuilt_plan(workload.parameters, options.caps, order))
    return Plans(starts, plans, held)
