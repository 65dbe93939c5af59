"""The bench: every predictor under every policy on every trace and machine, beside torch and an oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ddpsim.bucketing.order.consensus import Consensus
from ddpsim.bucketing.order.predictors import predictor_name
from ddpsim.common.errors import InputError
from ddpsim.planning.orderbench.bootstrap import relative_difference
from ddpsim.planning.orderbench.machines import BenchMachine, caps_for
from ddpsim.planning.orderbench.replaying import Replayer, ReplayResult
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import WARM_UP
from ddpsim.workload.order_trace import OrderTrace

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
    """What is set side by side.

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


def bench(asked: Bench, progress: Progress = lambda done, total: None) -> Iterator[OrderBenchRow]:
    """Yield a row for each predictor and policy, trace by trace, machine by machine.

    Raises:
        InputError: a trace of other ranks than the machine has places for, a predictor that failed.
    """
    done = 0
    for trace in asked.traces:
        for machine in asked.machines:
            for row in _rows(asked, trace, machine):
                done += 1
                progress(done, asked.points)
                yield row


def _rows(asked: Bench, trace: OrderTrace, machine: BenchMachine) -> Iterator[OrderBenchRow]:
    replayer = Replayer.of(trace, machine, asked.options(trace, machine))

    def replayed(policy: str, predictor: object, consensus: Consensus = asked.consensus) -> ReplayResult:
        chosen = replace(replayer.options, order=policy, predictor=predictor, consensus=consensus)
        return replayer.policy(chosen)

    oracle, once = replayer.oracle(), replayed("once", "last", "rank0")
    torch = replayed("never", "last", "rank0") if asked.searches(trace) else once
    for policy in asked.policies:
        for predictor in asked.predictors:
            found = replayed(policy, predictor)
            regret = relative_difference(found.step_s, oracle.step_s, asked.seed)
            loss = relative_difference(found.step_s, torch.step_s, asked.seed)
            yield OrderBenchRow(
                trace=trace.name,
                ranks=trace.ranks,
                machine=machine.name,
                policy=policy,
                predictor=predictor_name(predictor),
                step_s=float(found.step_s.mean()),
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
                tau=found.tau,
                held_back_s=found.held_back_s,
                rebuilds=found.rebuilds,
                conferences=found.conferences,
            )
