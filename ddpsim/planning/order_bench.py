"""What an idea on the order of gradients is worth: predictors and rebuild policies, net of what they cost.

Start at `bench`: every predictor under every policy on every trace and machine, compared with torch and with an oracle.
A `Replayer` simulates one order trace on one machine, the same ranks and iterations under every policy, so that steps
are compared in pairs (`relative_difference`). A `BenchMachine` may scale computation so that communication takes a set
share of backward: at a trace's own pace order may not matter at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddpsim.bucketing import BucketCaps, rebuilt_plan
from ddpsim.bucketing.order.agreement import ready_tau
from ddpsim.bucketing.order.arrivals import Arrivals
from ddpsim.bucketing.order.consensus import Consensus, arrange, consensus
from ddpsim.bucketing.order.predictors import predictor_name
from ddpsim.bucketing.order.traces import held_back_by
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.common.errors import InputError, WorkloadError
from ddpsim.common.operation import Operation
from ddpsim.common.options.option import positive
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.engine import run_resolved, trace_of
from ddpsim.simulation.jobs.plans import Plans, PolicyView, plans_of
from ddpsim.simulation.jobs.representatives import LATEST, RankKind, SimulatedRank
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import WARM_UP, resolve
from ddpsim.topology.graph import Cluster, Placement
from ddpsim.topology.placement import place
from ddpsim.workload.iteration_profile import merge_latest, paces
from ddpsim.workload.order_trace import OrderTrace

Steps = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay: the time of every step, and how well its buckets fitted the order.

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
        orders: by iteration and rank, the gradients in the order in which they came.
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
        """Return the result of the policy that `options` name.

        Raises:
            InputError: a predictor that failed.
        """
        total = self.trace.iterations
        seen = [seen for draw in self.draws for seen in draw.seen]
        return self._replay(options, plans_of(options, self.trace.workloads[0], seen, range(total), total))

    def oracle(self) -> ReplayResult:
        """Return the result of buckets that are built anew before every iteration for the order to come, at no cost.

        The order is that of the last rank at each gradient, which a collective waits for; gradients that no rank uses
        go first, since they are announced with the first one.
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
        # Rank 0 stands for all: ranks leave each allreduce together.
        counted = [record for record in run.iterations if record.rank == 0]
        groups = {id(plan): plan.groups() for plan in plans.plans}
        held_back_s = [
            held_back_by(groups[id(plans.plan(it.index))], {g.parameter: g.hook_s for g in it.gradients})
            for it in counted
        ]
        return ReplayResult(
            step_s=np.array([it.iteration_s for it in counted]),
            tau=self._tau(plans),
            held_back_s=fmean(held_back_s),
            rebuilds=plans.rebuilds,
            conferences=len(plans.held),
        )

    def _tau(self, plans: Plans) -> float | None:
        """Return the mean Kendall's tau between the order that the buckets in force expected and the order that
        came."""
        conferences = [each for each in plans.held.values() if each.decision.order is not None]
        starts, count = [each.iteration for each in conferences], len(self.trace.parameters)
        taus = []
        for k, orders in enumerate(self.orders):
            if (place := bisect_right(starts, k)) and k >= WARM_UP:
                expected = conferences[place - 1].decision.expected
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


BLOCK = 10
"""Steps that are drawn together, so that what carries over from one to the next stays: chosen by hand."""
DRAWS = 1000
"""Resamples; their 5th and 95th percentiles move by less than a tenth of the interval from seed to seed."""
ENDS = (5, 95)
"""Percentiles of the interval's ends: 90 % of it lies between."""


def relative_difference(
    steps: NDArray[np.float64], base: NDArray[np.float64], seed: int = 0, centre: Callable[..., Any] = np.mean
) -> tuple[float, float, float]:
    """Return by what share of `base` the mean, or another `centre`, of `steps` is longer, and its interval's ends.

    Both hold the same steps, so that they are drawn in pairs: blocks of consecutive ones that begin anywhere and go on
    at the start (the circular block bootstrap of Politis and Romano, 1992).
    """
    count = len(steps)
    length = min(BLOCK, count)
    rng = np.random.default_rng([seed, count])
    begins = rng.integers(count, size=(DRAWS, -(-count // length)))
    places = ((begins[:, :, None] + np.arange(length)) % count).reshape(DRAWS, -1)[:, :count]
    drawn = centre(steps[places], axis=1) / centre(base[places], axis=1) - 1
    low, high = np.percentile(drawn, ENDS)
    return float(centre(steps) / centre(base) - 1), float(low), float(high)


MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """A topology, and how long its communication takes beside backward.

    Attributes:
        topology: one rank a node, as many nodes as the trace has ranks.
        wire_over_backward: what all buckets, one after another, take over what backward does; computation is scaled so.
            None keeps the recorded pace.
        calibration: measured constants; None is the priors.
    """

    topology: Cluster
    wire_over_backward: float | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        if self.wire_over_backward is not None:
            positive("wire_over_backward", self.wire_over_backward)

    @property
    def name(self) -> str:
        """The topology's name, with the ratio where there is one."""
        ratio = self.wire_over_backward
        return self.topology.name if ratio is None else f"{self.topology.name} at {ratio:g}"

    def placement(self, trace: OrderTrace) -> Placement:
        """Return where the ranks of `trace` are."""
        return place(self.topology, trace.ranks, 1)

    def scale(self, trace: OrderTrace, caps: BucketCaps) -> float:
        """Return the factor on computation that gives the ratio."""
        if self.wire_over_backward is None:
            return 1.0
        first = trace.workloads[0]
        transport = make_transport(self.placement(trace), Options().backend_for(first), self.calibration)
        plan = rebuilt_plan(trace.parameters, caps)
        wire_s = sum(transport.time_s(Operation.ALLREDUCE, bucket.size_bytes) for bucket in plan.buckets)
        return wire_s / self.wire_over_backward / float(first.backward.host_s.mean())


def caps_for(trace: OrderTrace, buckets: int) -> BucketCaps:
    """Return the cap that cuts the gradients of a trace into about so many buckets.

    Recorded models are small; torch's 25 MiB would put all of one into one bucket, of a large model into a dozen.
    """
    return BucketCaps(bucket_cap_mb=round(trace.workloads[0].gradient_bytes / MIB / buckets, 6))


Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class OrderBenchRow:
    """One predictor under one policy on one trace and machine; times are means over the same steps.

    Attributes:
        step_s: the step, with what conferring and rebuilding cost.
        oracle_s: with buckets built for free for what comes next.
        rebuilt_once_s: with torch's one rebuild, after the first backward, for what rank 0 saw.
        torch_s: as stock torch has it: rebuilt once, or never where gradients are missing (find_unused_parameters).
        regret, regret_low, regret_high: by what share of the oracle's the step is longer, with a 90 % interval.
        gain, gain_low, gain_high: what share of stock torch's step is saved, likewise.
        bound: what share of stock torch's step the oracle saves.
        tau: of what was expected and what came, unused parameters counted; None where nothing was expected.
        held_back_s: how long complete buckets waited for one before them.
        rebuilds, conferences: how many there were.
    """

    trace: str
    ranks: int
    machine: str
    policy: str
    predictor: str
    step_s: float
    oracle_s: float
    rebuilt_once_s: float
    torch_s: float
    regret: float
    regret_low: float
    regret_high: float
    gain: float
    gain_low: float
    gain_high: float
    bound: float
    tau: float | None
    held_back_s: float
    rebuilds: int
    conferences: int

    def document(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The traces, machines, predictors and policies of a bench, all with all.

    Attributes:
        traces, machines: where.
        predictors: as `ddpsim.bucketing.order.predictor` takes them.
        policies: when to rebuild, as `ddpsim.bucketing.order.rebuild` reads them.
        consensus: whose expectation wins.
        buckets: about how many a model has.
        find_unused_parameters: also of traces that miss no gradient, as training scripts often have it.
        seed: of the intervals' draws.

    Raises:
        InputError: nothing of some kind.
    """

    traces: Sequence[OrderTrace]
    machines: Sequence[BenchMachine]
    predictors: Sequence[object]
    policies: Sequence[str]
    consensus: Consensus = "slowest"
    buckets: int = 8
    find_unused_parameters: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for kind in ("traces", "machines", "predictors", "policies"):
            if not getattr(self, kind):
                raise InputError("nothing is given", place=kind, remedy="give at least one")

    @property
    def points(self) -> int:
        """How many rows there will be."""
        return len(self.traces) * len(self.machines) * len(self.predictors) * len(self.policies)

    def searches(self, trace: OrderTrace) -> bool:
        """Return whether unused parameters are looked for, so that torch never rebuilds."""
        return trace.misses_gradients or self.find_unused_parameters

    def options(self, trace: OrderTrace, machine: BenchMachine) -> Options:
        """Return what every replay of a trace on a machine is simulated with."""
        caps = caps_for(trace, self.buckets)
        return Options(
            caps=caps,
            order="never",
            find_unused_parameters=self.searches(trace),
            scale_compute=machine.scale(trace, caps),
            iterations=trace.iterations - WARM_UP,
        )


def bench(setup: Bench, progress: Progress = lambda done, total: None) -> Iterator[OrderBenchRow]:
    """Yield a row for each predictor and policy, trace by trace, machine by machine.

    Raises:
        InputError: a trace of other ranks than the machine has places for, a predictor that failed.
    """
    done = 0
    for trace in setup.traces:
        for machine in setup.machines:
            for row in _rows(setup, trace, machine):
                done += 1
                progress(done, setup.points)
                yield row


def _rows(setup: Bench, trace: OrderTrace, machine: BenchMachine) -> Iterator[OrderBenchRow]:
    replayer = Replayer.of(trace, machine, setup.options(trace, machine))

    def replay(policy: str, predictor: object, consensus: Consensus = setup.consensus) -> ReplayResult:
        chosen = replace(replayer.options, order=policy, predictor=predictor, consensus=consensus)
        return replayer.policy(chosen)

    # torch rebuilds once, after the first backward, for what rank 0 saw; never where it searches for unused parameters.
    oracle, once = replayer.oracle(), replay("once", "last", "rank0")
    torch = replay("never", "last", "rank0") if setup.searches(trace) else once
    for policy in setup.policies:
        for predictor in setup.predictors:
            result = replay(policy, predictor)
            regret = relative_difference(result.step_s, oracle.step_s, setup.seed)
            loss = relative_difference(result.step_s, torch.step_s, setup.seed)
            yield OrderBenchRow(
                trace=trace.name,
                ranks=trace.ranks,
                machine=machine.name,
                policy=policy,
                predictor=predictor_name(predictor),
                step_s=float(result.step_s.mean()),
                oracle_s=float(oracle.step_s.mean()),
                rebuilt_once_s=float(once.step_s.mean()),
                torch_s=float(torch.step_s.mean()),
                regret=regret[0],
                regret_low=regret[1],
                regret_high=regret[2],
                gain=-loss[0],
                gain_low=-loss[2],
                gain_high=-loss[1],
                bound=1 - float(oracle.step_s.mean() / torch.step_s.mean()),
                tau=result.tau,
                held_back_s=result.held_back_s,
                rebuilds=result.rebuilds,
                conferences=result.conferences,
            )
