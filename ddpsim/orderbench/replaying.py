"""One trace on one machine under one policy: its steps, and how its buckets fitted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from ddpsim.bucketing import rebuilt_plan
from ddpsim.jobs.simulated import Options
from ddpsim.order import Arrivals, arrange, consensus
from ddpsim.order.agreement import ready_tau
from ddpsim.order.traces import held_back_by
from ddpsim.orderbench.machines import Machine
from ddpsim.simulation import simulate
from ddpsim.simulation.engine import WARM_UP
from ddpsim.simulation.plans import Plans, plans_of
from ddpsim.simulation.replayed import replayed
from ddpsim.workload.order_trace import OrderTrace

Steps = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay leaves the time of every step, and how its buckets fitted.

    Attributes:
        step_s: by iteration, those of the warm-up apart.
        tau: mean Kendall's tau, unused parameters counted, of what was expected and what came, over ranks and
            iterations; None where nothing was expected.
        held_back_s: mean over iterations of the longest that a complete bucket of rank 0 waited for one before it.
        rebuilds, conferences: how many there were in all.
    """

    step_s: Steps
    tau: float | None
    held_back_s: float
    rebuilds: int
    conferences: int


def replay_policy(trace: OrderTrace, machine: Machine, options: Options) -> Replayed:
    """Return what the policy that `options` name does on `trace`.

    Raises:
        InputError: a predictor that failed.
    """
    return _replay(trace, machine, options, None)


def replay_oracle(trace: OrderTrace, machine: Machine, options: Options) -> Replayed:
    """Return what buckets do that are built anew before every iteration for what will come, at no cost.

    They follow the last rank at each gradient, which a collective waits for; what no rank uses goes first, since it is
    announced with the first gradient.
    """
    whole = [
        [Arrivals(rank, k, order).ready(len(trace.parameters)) for rank, order in enumerate(orders)]
        for k, orders in enumerate(_orders_by_iteration(trace))
    ]
    orders = [arrange(consensus(by_rank, "slowest"), "first") for by_rank in whole]
    plans = [rebuilt_plan(trace.parameters, options.caps, order) for order in orders]
    return _replay(trace, machine, options, Plans(range(len(plans)), plans))


def _replay(trace: OrderTrace, machine: Machine, options: Options, planned: Plans | None) -> Replayed:
    placement = machine.placement(trace)
    first, total = trace.workloads[0], trace.iterations
    plans = planned or plans_of(
        options, first, [s for draw in replayed(trace, trace.ranks, options) for s in draw.seen], range(total), total
    )
    run = simulate(first, placement, options, machine.calibration, traced=trace, planned=plans, warm_up=WARM_UP)
    counted = [record for record in run.iterations if record.rank == 0]
    held = [
        held_back_by(plans.plan(it.index).groups(), {g.parameter: g.hook_s for g in it.gradients}) for it in counted
    ]
    return Replayed(
        step_s=np.array([it.iteration_s for it in counted]),
        tau=_tau(trace, plans),
        held_back_s=fmean(held),
        rebuilds=plans.rebuilds,
        conferences=len(plans.held),
    )


def _tau(trace: OrderTrace, plans: Plans) -> float | None:
    """Return the mean tau of what the buckets in force were built for and what came."""
    held = [each for each in plans.held.values() if each.decision.order is not None]
    if not held:
        return None
    starts, count = [each.iteration for each in held], len(trace.parameters)
    taus = []
    for k, orders in enumerate(_orders_by_iteration(trace)):
        if (place := bisect_right(starts, k)) and k >= WARM_UP:
            expected = held[place - 1].decision.expected
            taus += [ready_tau(expected, Arrivals(0, k, order).ready(count)) for order in orders]
    return fmean(taus) if taus else None


def _orders_by_iteration(trace: OrderTrace) -> Sequence[tuple[tuple[int, ...], ...]]:
    return list(zip(*(workload.used_orders() for workload in trace.workloads), strict=True))
