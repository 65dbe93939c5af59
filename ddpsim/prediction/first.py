"""Construction and the first iterations of a predicted job: how long until its steps are as the prediction says."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import check_at_least_one
from ddpsim.prediction.construction import Construction, construct
from ddpsim.prediction.prediction import Prediction
from ddpsim.schedules.named import scheme_named
from ddpsim.simulation import IterationProfile, Options
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.engine import run_resolved
from ddpsim.simulation.jobs.plans import Plans
from ddpsim.simulation.jobs.representatives import SimulatedRank
from ddpsim.simulation.record import iterations_of
from ddpsim.simulation.resolve import WARM_UP, SimulatedIterations, resolve
from ddpsim.trace.records import Iteration

STEADY = 0.01
"""By how much of itself an iteration may be longer or shorter and count as steady; chosen by hand: a run's own
iterations differ by more."""

MOST = 1000
"""First iterations; chosen by hand: what is not steady by then does not become so."""


@dataclass(frozen=True, slots=True)
class FirstIteration:
    """One of the first iterations, of the first rank.

    Attributes:
        simulated: it.
        steady_s: what it takes with the buckets of the last one, as long after the first as it takes.
        buckets: that it reduces, or messages of a scheme; 0 where its gradients are kept for a later one.
        rebuilt: whether buckets were rebuilt before it.
    """

    simulated: Iteration
    steady_s: float
    buckets: int
    rebuilt: bool

    @property
    def steady(self) -> bool:
        """Whether it takes what it does once all is steady."""
        return abs(self.simulated.iteration_s / self.steady_s - 1) <= STEADY

    def document(self) -> dict[str, object]:
        """Return the iteration as JSON values."""
        it = self.simulated
        return {
            "index": it.index,
            "iteration_s": it.iteration_s,
            "steady_s": self.steady_s,
            "buckets": self.buckets,
            "rebuilt": self.rebuilt,
            "exposed_comm_s": it.exposed_comm_s,
            "buffer_broadcast_s": it.buffer_broadcast_s,
            "ddp_overhead_s": it.ddp_overhead_s,
        }


@dataclass(frozen=True, slots=True)
class FirstIterations:
    """The beginning of a job.

    Attributes:
        construction: of DDP; None of a scheme that another library carries out, whose own is not known.
        iterations: from the first on.
    """

    construction: Construction | None
    iterations: tuple[FirstIteration, ...]

    @property
    def steady_from(self) -> int | None:
        """The iteration from which all are steady; None where the last is not."""
        late = [each.simulated.index for each in self.iterations if not each.steady]
        begins = late[-1] + 1 if late else 0
        return begins if begins < len(self.iterations) else None

    @property
    def longer_s(self) -> float:
        """By how much all of them together are longer than as many steady ones, the construction left out."""
        return sum(each.simulated.iteration_s - each.steady_s for each in self.iterations)

    def document(self) -> dict[str, object]:
        """Return the key `first` of the `predict` document."""
        construction = self.construction
        made = None
        if construction is not None:
            made = {
                "construction_s": construction.seconds,
                "state_bytes": construction.state_bytes,
                "messages": [message.document() for message in construction.messages],
            }
        return {
            "construction": made,
            "iterations": [each.document() for each in self.iterations],
            "steady_from": self.steady_from,
            "longer_s": self.longer_s,
        }


def check_first(count: int, options: Options) -> None:
    """Refuse first iterations that nobody can compare with steady ones.

    Raises:
        InputError: no count, or options under which no two iterations are alike.
    """
    check_at_least_one("first", count, MOST)
    refuse_excluded(options, "predict --first", beside={"first": True})


def predict_first_iterations(prediction: Prediction, count: int) -> FirstIterations:
    """Return the construction of a predicted job and its first iterations.

    They begin with torch's first buckets, which are rebuilt as torch or the order policy has it, and with an idle
    device. Each is compared with the same recorded iteration in a job that has run for a while with the buckets of the
    last one.

    Args:
        prediction: of the steady state.
        count: iterations, micro-batches.

    Raises:
        InputError: as `check_first`.
    """
    check_first(count, prediction.options)
    if devices := prediction.workload.devices:
        what = f"{prediction.workload.name} has {len(devices)} devices a rank, whose construction is not known"
        raise InputError(what, place="first", remedy="leave it out, or take a step of one device")
    run = prediction.run
    # Of the last one messages may be in flight, which a period more sees to their end.
    periods = math.ceil(count / run.options.period) + 1
    options, total = replace(run.options, order=_order(run.options)), periods * run.options.period
    began = run.under(options, extent=SimulatedIterations(0, total, total))
    iterations = iterations_of(began.graph, began.graph.ranks[0], began.times)[:count]
    plans = began.settings[0].plans.plan
    shift = WARM_UP * run.options.period
    later = [replace(draw, pace=partial(_shift_draw, draw, shift)) for draw in began.draws]
    steady = run_resolved(
        resolve(
            run.workloads,
            run.placement,
            began.job.options,
            Assumptions(run.calibration),
            extent=SimulatedIterations(shift, shift + total, shift + total),
            drawn=(later, Plans([0], [plans(count - 1)])),
        )
    )
    compared = zip(iterations, iterations_of(steady.graph, steady.graph.ranks[0], steady.times)[shift:], strict=False)
    rebuilt = {k for k in range(1, count) if plans(k).groups() != plans(k - 1).groups()}
    found = [FirstIteration(it, then.iteration_s, len(it.buckets), it.index in rebuilt) for it, then in compared]
    ours = scheme_named(run.options.scheme).runner == "ddpexec"
    return FirstIterations(construct(began) if ours else None, tuple(found))


def _order(options: Options) -> str | None:
    """Return when buckets are rebuilt: as was asked, or as torch does where its own assignment is in force."""
    fixed = options.plan is not None or options.scheduled or options.assignment_in_force != "rebuilt"
    return options.order if options.order is not None or fixed else "once"


def _shift_draw(draw: SimulatedRank, shift: int, iteration: int) -> IterationProfile:
    return draw.pace(max(0, iteration - shift))
