"""The step of a prediction under many assumptions: retimed, its graph run again, or built anew, as each needs it.

A band needs the step at some twenty ends of doubts. Three ways, the cheapest first, each of which says where it cannot
tell a step:

1. *Retimed* (`retime`): nothing is simulated. The order of the run's nodes is kept, and each begins at the latest end
   of what it came after, under new costs; all assumptions at once, a column each. True while that order would stay.
2. *Run again* (`run_again` in `_simulate_each`): the same graph on SimPy under new costs, where the order may change.
3. *Built anew* (`with_assumptions`): resolved, built and run, where new costs make other nodes.

Start at `periods_under`. Nobody outside knows which way a step came, but for `AlternativeStep.retimed`, which documents
count. Measured for 23 ends: retimed 0.05 to 0.13 s, run again 0.15 to 0.55 s (ResNet-50 alike).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ddpsim.prediction.prediction import AlternativeStep, Prediction
from ddpsim.prediction.simulated_run import SAME, SimulatedRun, is_settled, shorten_run, simulated_period_s
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.engine import trace_of
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.simulation.resolve import SimulatedIterations
from ddpsim.simulation.retiming.dependencies import Dependencies
from ddpsim.simulation.retiming.prices import has_prices
from ddpsim.simulation.retiming.retime import periods_s, run_again
from ddpsim.simulation.run import Progress
from ddpsim.trace.metrics import Summary, summarise

FEW_APART = 3
"""Iterations simulated for an end of a band of an asynchronous scheme, whose ranks do not wait for each other.

The prediction itself counts more iterations, so that an end is compared with the same three of the prediction's run
(`is_told_by_few`). Only where all iterations of the slowest ranks are alike: then an end is off by 0.02 % of the step
at most, 0.11 % with one iteration (vgg16 on 2 x dgx-1v, `parameter-server:servers=2,async`, a straggler of 1.2); of mlp
on dgx-1v, whose iterations differ by 40 %, it would be off by 4 %.
"""

_ALIKE = 1e-3
"""Share of a step by which iterations that are alike differ at most; chosen by hand, between 0 and the 2.5 % of those
that are not."""

_HOST_FAR = 0.1
"""Factor on the host's time below which a step is simulated again; the ends of every doubt lie above."""


def periods_under(
    prediction: Prediction,
    assumed: Sequence[Assumptions],
    progress: Progress | None = None,
    *,
    exact: bool = False,
) -> list[AlternativeStep]:
    """Return the iteration of `prediction` under each of `assumed`, by the cheapest way that tells it.

    Args:
        progress: as that of `predict`, of those that are built anew.
        exact: whether to simulate all: retimed, a step may be off by a few thousandths.
    """
    run, undisturbed_s = prediction.run, prediction.iteration_s
    if run.options.disturbed:
        # Doubts are applied to the job by itself, and what another job on its network adds is taken as constant: that
        # one would have to be simulated too, at every end.
        run = run.without_beside()
        undisturbed_s = summarise(trace_of(run.short())).iteration_s
    disturbance_s = prediction.iteration_s - undisturbed_s
    retimed_s = [None] * len(assumed) if exact else retime(run, assumed)
    # Retiming assumes that each start waits for the same thing as before. Without the host's work it waits for another,
    # and a retimed step was half a per cent off.
    retimed_s = [None if each.host < _HOST_FAR else s for each, s in zip(assumed, retimed_s, strict=True)]
    left = [each for each, s in zip(assumed, retimed_s, strict=True) if s is None]
    simulated_s = iter(_simulate_each(run, undisturbed_s, left, progress))
    return [
        AlternativeStep((next(simulated_s) if s is None else s) + disturbance_s, retimed=s is not None)
        for s in retimed_s
    ]


def retime(run: SimulatedRun, assumed: Sequence[Assumptions]) -> list[float | None]:
    """Return the period of a job under each of `assumed` by retiming its graph; None where that cannot tell it."""
    ran, few = run.short(), is_told_by_few(run)
    extent = _extent(run, few=few)
    if run.order is None and has_prices(ran):
        run.order = Dependencies(ran, extent.end)
    # Of few iterations the difference counts: what the whole run's period is longer by stays as it is.
    longer_s = simulated_period_s(ran) - simulated_period_s(ran, extent) if few else 0.0
    periods = periods_s(ran, extent, assumed, run.order)
    return [None if period_s is None else period_s + longer_s for period_s in periods]


def _simulate_each(
    run: SimulatedRun, now_s: float, assumed: Sequence[Assumptions], progress: Progress | None
) -> list[float]:
    """Return the iteration under each of `assumed`, simulated: of the graph run again, or of one that is built anew.

    Two kinds of run would take minutes for a band, and a cheaper run stands in for them: `fidelity="steps"` uses the
    flow model, an asynchronous scheme `FEW_APART` iterations. The cheaper run is made under no assumption too, and only
    the difference between the two is added to the prediction: their common error cancels.

    Args:
        now_s: the iteration as predicted.
    """
    if not assumed:
        return []
    ran, options, few = run.short(), run.options, is_told_by_few(run)
    by_flow = options.fidelity == "steps"
    if by_flow:
        options = replace(options, fidelity="flow")
        ran = replace(ran, job=replace(ran.job, options=replace(ran.job.options, fidelity="flow")))
    if few:
        options = replace(options, iterations=FEW_APART)
    reference = [Assumptions(run.calibration)] if by_flow or few else []
    every = [*reference, *assumed]
    again_s = run_again(ran, _extent(run, few=few), every, None if run.order is None else run.order.graph)
    steps_s = [
        with_assumptions(run, each, progress, options=options).iteration_s if step_s is None else step_s
        for each, step_s in zip(every, again_s, strict=True)
    ]
    return [now_s + step_s - steps_s[0] for step_s in steps_s[1:]] if reference else steps_s


def is_told_by_few(run: SimulatedRun) -> bool:
    """Whether `FEW_APART` iterations of an asynchronous scheme tell what an assumption changes.

    They do where the slowest ranks, which set the step, take the same time in every iteration; ranks that wait for each
    other need no such rule, for `shorten_run` has cut their run already.
    """
    options, ran = run.options, run.short()
    varied = options.jitter > 0 or options.drop or run.workload.iterations > 1
    if ran.shared.apart is None or options.iterations_of(run.workload) <= FEW_APART or varied:
        return False
    end, counted = ran.times.end, slice(ran.extent.begin, ran.extent.end)
    ranks = [rank.iterations[counted] for rank in ran.graph.ranks if rank.number >= 0]
    periods = np.array([[end[each.end] - end[each.start] for each in iterations] for iterations in ranks])
    slowest = periods[periods.mean(axis=1) >= (1 - _ALIKE) * periods.mean(axis=1).max()]
    return bool(np.ptp(slowest) <= _ALIKE * slowest.mean())


def _extent(run: SimulatedRun, *, few: bool) -> SimulatedIterations:
    """Return the iterations of a run's graph over which assumptions are compared."""
    ran = run.short()
    options, extent = shorten_run(run.options, run.workload)
    if few:
        extent = SimulatedIterations.of(options, FEW_APART, repeats=ran.extent.repeats)
    short = _counted(run, options, extent).fit(options, ran.schedule)
    # A slow host may fall behind by less each iteration: then the short run has not reached the steady period yet, and
    # the iterations of the whole run are read.
    settled = few or short.repeats or abs(simulated_period_s(ran, short) / simulated_period_s(ran) - 1) <= SAME
    return short if settled else ran.extent


def with_assumptions(
    run: SimulatedRun, assumed: Assumptions, progress: Progress | None = None, *, options: Options | None = None
) -> Summary:
    """Return the step of a job and its parts under other assumptions, built anew, with `options` for its own."""
    options = options or run.options
    brief, extent = shorten_run(assumed.scale(options), run.workload)
    options = replace(options, accumulate=brief.accumulate)
    ran = run.under(options, assumed, extent=_counted(run, brief, extent), progress=progress)
    if not is_settled(ran):
        ran = run.under(options, assumed, extent=_counted(run, brief), progress=progress)
    return summarise(trace_of(ran))


def _counted(run: SimulatedRun, options: Options, extent: SimulatedIterations | None = None) -> SimulatedIterations:
    """Return `extent`, or all iterations that `options` ask for, without those after the last that counts.

    A run goes on past that one until all its messages have ended, which its trace needs and its period does not.
    """
    if extent is None:
        periods = max(options.iterations_of(kind.workload) for kind in run.short().kinds)
        extent = SimulatedIterations.of(options, periods)
    return replace(extent, total=extent.end)
