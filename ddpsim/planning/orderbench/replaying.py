"""One trace on one machine: its steps under a policy or an oracle, and how its buckets fitted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ddpsim.bucketing import rebuilt_plan
from ddpsim.bucketing.order.agreement import ready_tau
from ddpsim.bucketing.order.arrivals import Arrivals
from ddpsim.bucketing.order.consensus import arrange, consensus
from ddpsim.bucketing.order.traces import held_back_by
from ddpsim.common.errors import WorkloadError
from ddpsim.planning.orderbench.machines import BenchMachine
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.engine import run_resolved, trace_of
from ddpsim.simulation.jobs.plans import Plans, PolicyView, plans_of
from ddpsim.simulation.jobs.representatives import LATEST, RankKind, SimulatedRank
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import WARM_UP, resolve
from ddpsim.topology.graph import Placement
from ddpsim.workload.iteration_profile import merge_latest, paces
from ddpsim.workload.order_trace import OrderTrace

if TYPE_CHECKING:
    from ddpsim.workload.order_trace import OrderTrace


Steps = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReplayResult:
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


@dataclass(frozen=True, slots=True)
class Replayer:
    """What every replay of one trace on one machine shares.

    Attributes:
        orders: by iteration and rank, the gradients that came.
        draws: who stands for which ranks.
        options: of every replay, but for its policy.
    """

    trace: OrderTrace
    machine: BenchMachine
    placement: Placement
    orders: Sequence[tuple[tuple[int, ...], ...]]
    draws: Sequence[SimulatedRank]
    options: Options

    @classmethod
    def of(cls, trace: OrderTrace, machine: BenchMachine, options: Options) -> Replayer:
        """Return the replayer of `trace` on `machine`, whose pace `options` set."""
        orders = list(zip(*(workload.used_orders() for workload in trace.workloads), strict=True))
        placement = machine.placement(trace)
        return cls(trace, machine, placement, orders, replayed(trace, trace.ranks, options), options)

    def policy(self, options: Options) -> ReplayResult:
        """Return what the policy that `options` name does.

        Raises:
            InputError: a predictor that failed.
        """
        total = self.trace.iterations
        seen = [seen for draw in self.draws for seen in draw.seen]
        return self._replay(options, plans_of(options, self.trace.workloads[0], seen, range(total), total))

    def oracle(self) -> ReplayResult:
        """Return what buckets do that are built anew before every iteration for what will come, at no cost.

        They follow the last rank at each gradient, which a collective waits for; what no rank uses goes first, since it
        is announced with the first gradient.
        """
        caps, parameters = self.options.caps, self.trace.parameters
        plans = []
        for k, orders in enumerate(self.orders):
            ready = [Arrivals(rank, k, order).list_ready(len(parameters)) for rank, order in enumerate(orders)]
            plans.append(rebuilt_plan(parameters, caps, arrange(consensus(ready, "slowest"), "first")))
        return self._replay(self.options, Plans(range(len(plans)), plans))

    def _replay(self, options: Options, plans: Plans) -> ReplayResult:
        assumed, workload = Assumptions(self.machine.calibration), self.trace.workloads[0]
        resolved = resolve(workload, self.placement, options, assumed, drawn=(self.draws, plans))
        run = trace_of(run_resolved(resolved))
        counted = [record for record in run.iterations if record.rank == 0]
        groups = {id(plan): plan.groups() for plan in plans.plans}
        held = [
            held_back_by(groups[id(plans.plan(it.index))], {g.parameter: g.hook_s for g in it.gradients})
            for it in counted
        ]
        return ReplayResult(
            step_s=np.array([it.iteration_s for it in counted]),
            tau=self._tau(plans),
            held_back_s=fmean(held),
            rebuilds=plans.rebuilds,
            conferences=len(plans.held),
        )

    def _tau(self, plans: Plans) -> float | None:
        """Return the mean tau of what the buckets in force were built for and what came."""
        held = [each for each in plans.held.values() if each.decision.order is not None]
        starts, count = [each.iteration for each in held], len(self.trace.parameters)
        taus = []
        for k, orders in enumerate(self.orders):
            if (place := bisect_right(starts, k)) and k >= WARM_UP:
                expected = held[place - 1].decision.expected
                taus += [ready_tau(expected, Arrivals(0, k, order).list_ready(count)) for order in orders]
        return fmean(taus) if taus else None


def replayed(trace: OrderTrace, world_size: int, options: Options) -> list[SimulatedRank]:
    """Return the ranks of `trace`, whose iterations come in their order and begin anew after the last.

    Ranks leave each allreduce together, so that the last of several is at every gradient where the last of them is;
    what one of them does not use, it announces at its first gradient.

    Raises:
        WorkloadError: a world of other ranks than were recorded.
    """
    if world_size != trace.ranks:
        what = f"{trace.name} has {trace.ranks} ranks, the machine {world_size}"
        raise WorkloadError(what, place="traces", remedy=f"place it on {trace.ranks} ranks (`nodes`, `gpus_per_node`)")
    recorded = [
        paces(
            workload,
            options.scale_compute * options.stragglers.get(rank, 1.0),
            options.scale_host,
            options.scale,
        )
        for rank, workload in enumerate(trace.workloads)
    ]
    count = trace.iterations

    def seen(rank: int) -> PolicyView:
        return PolicyView(lambda k: recorded[rank][k % count], lambda k: trace.contexts[rank][k % count])

    first = trace.workloads[0]
    draws = [SimulatedRank(0, range(1), RankKind(range(1), first, tuple(recorded[0])), seen(0).pace, (seen(0),))]
    if trace.ranks > 1:
        late_s = [0.0] * (trace.ranks - 1)
        others = [merge_latest([paced[k] for paced in recorded[1:]], late_s) for k in range(count)]
        known = [seen(rank) for rank in range(1, trace.ranks)]
        kind = RankKind(range(1, trace.ranks), first, tuple(others))
        draws.append(SimulatedRank(LATEST, kind.ranks, kind, lambda k: others[k % count], known))
    return draws
