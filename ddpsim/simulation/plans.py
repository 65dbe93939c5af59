"""The buckets in force in each iteration: fixed, or rebuilt as an order policy says."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from ddpsim.bucketing import BucketPlan, rebuilt_plan
from ddpsim.jobs.simulated import Options
from ddpsim.order import Arrivals, OrderPolicy, replay
from ddpsim.simulation.pace import Pace
from ddpsim.workload import Workload


def plans_of(
    options: Options, workload: Workload, paces: Sequence[Callable[[int], Pace]], synced: Iterable[int]
) -> Callable[[int], BucketPlan]:
    """Return the plan of each iteration.

    In which order hooks fire is the workload's alone, so that the arrivals of a whole run are known before it is
    simulated, and `ddpsim.order.replay` says when the policy rebuilds for them.

    Args:
        options: name the policy; without one the plan is the same throughout.
        workload: whose parameters.
        paces: of each simulated rank, by iteration.
        synced: iterations whose gradients are reduced, ascending; only these are watched.
    """
    policies = [policy for _ in paces if (policy := options.order_policy(len(workload.parameters))) is not None]
    if not policies:
        plan = options.bucket_plan(workload)
        return lambda iteration: plan
    starts, plans = [0], [options.first_plan(workload.parameters, options.plan)]
    for start, plan in _rebuilds(options, workload, policies, paces, synced):
        starts.append(start)
        plans.append(plan)
    return lambda iteration: plans[bisect_right(starts, iteration) - 1]


def _rebuilds(
    options: Options,
    workload: Workload,
    policies: Sequence[OrderPolicy],
    paces: Sequence[Callable[[int], Pace]],
    synced: Iterable[int],
) -> Iterable[tuple[int, BucketPlan]]:
    def assign(order: Sequence[int]) -> list[tuple[int, ...]]:
        return rebuilt_plan(workload.parameters, options.caps, order).groups()

    arrivals = [Arrivals(rank, k, pace(k).order) for k in synced for rank, pace in enumerate(paces)]
    first = options.first_plan(workload.parameters, options.plan)
    for rebuilt in replay(arrivals, policies, first.groups(), assign):
        yield rebuilt.iteration, rebuilt_plan(workload.parameters, options.caps, rebuilt.order)
