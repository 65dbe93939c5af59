"""The step of a prediction under many assumptions: retimed, its graph run again, or built anew, as each needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ddpsim.prediction.prediction import AlternativeStep, Prediction
from ddpsim.prediction.simulated_run import SAME, SimulatedRun, is_settled, shorten_run, simulated_period_s
from ddpsim.simulation import Options
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.engine import trace_of
from ddpsim.simulation.resolve import SimulatedIterations
from ddpsim.simulation.retiming.dependencies import Dependencies
from ddpsim.simulation.retiming.prices import has_prices
from ddpsim.simulation.retiming.retime import periods_s, run_again
from ddpsim.simulation.run import Progress
from ddpsim.trace.metrics import Summary, summarise

FEW_APART = 3
"""Iterations that are simulated for an end of a band where ranks do not wait for each other.

The prediction itself counts more of them. Only where all iterations of the slowest ranks are alike: then an end is off
by 0.02 % of the step at most, 0.11 % with one iteration (vgg16 on 2 x dgx-1v, `parameter-server:servers=2,async`, a
straggler of 1.2); of mlp on dgx-1v, whose iterations differ by 40 %, it would be off by 4 %.
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
    """Return the iteration of `prediction` under each of `assumed`.

    It is retimed; where that does not tell it, the graph is run again, and where that would be another, built anew.

    Args:
        progress: as that of `predict`, of those that are built anew.
        exact: whether to run all: retimed, a step may be off by a few thousandths.
    """
    run, now_s = prediction.run, prediction.iteration_s
    if run.options.disturbed:
        # What a doubt changes is told of the job by itself: another one beside it would be simulated at every end.
        run = run.without_beside()
        now_s = summarise(trace_of(run.short())).iteration_s
    more_s = prediction.iteration_s - now_s
    retimed = [None] * len(assumed) if exact else retime(run, assumed)
    # Retiming assumes that each start waits for the same thing as before. Without the host's work it waits for another,
    # and a retimed step was half a per cent off.
    retimed = [None if each.host < _HOST_FAR else s for each, s in zip(assumed, retimed, strict=True)]
    ends = [each for each, found_s in zip(assumed, retimed, strict=True) if found_s is None]
    told = iter(_simulate_each(run, now_s, ends, progress))
    return [AlternativeStep((next(told) if s is None else s) + more_s, retimed=s is not None) for s in retimed]


def retime(run: SimulatedRun, assumed: Sequence[Assumptions]) -> list[float | None]:
    """Return the period of a job under each of `assumed`, told from its graph; None where only another run tells it."""
    ran, few = run.short(), is_told_by_few(run)
    extent = _extent(run, few=few)
    if run.order is None and has_prices(ran):
        run.order = Dependencies(ran, extent.end)
    longer_s = simulated_period_s(ran) - simulated_period_s(ran, extent) if few else 0.0
    told = periods_s(ran, extent, assumed, run.order)
    return [None if each is None else each + longer_s for each in told]


def _simulate_each(
    run: SimulatedRun, now_s: float, assumed: Sequence[Assumptions], progress: Progress | None
) -> list[float]:
    """Return the iteration under each of `assumed`, simulated: of the graph run again, or of one that is built anew.

    Transfer by transfer every run would take minutes: it is told by what changes by flows; where ranks go apart, by
    what changes in few iterations.

    Args:
        now_s: the iteration as it is.
    """
    if not assumed:
        return []
    ran, few, flows = run.short(), is_told_by_few(run), replace(run.options, fidelity="flow")
    by_flow = run.options.fidelity == "steps"
    options = flows if by_flow else run.options
    if by_flow:
        ran = replace(ran, job=replace(ran.job, options=replace(ran.job.options, fidelity="flow")))
    if few:
        options = replace(options, iterations=FEW_APART)
    own = [Assumptions(run.calibration)] if by_flow or few else []
    every = [*own, *assumed]
    again = run_again(ran, _extent(run, few=few), every, None if run.order is None else run.order.graph)
    found = [
        with_assumptions(run, each, progress, options=options).iteration_s if again_s is None else again_s
        for each, again_s in zip(every, again, strict=True)
    ]
    return [now_s + each_s - found[0] for each_s in found[1:]] if own else found


def is_told_by_few(run: SimulatedRun) -> bool:
    """Whether what an assumption changes is told by `FEW_APART` of a run's iterations, beside the same of the run."""
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
    """Return which iterations of a run's graph tell what an assumption changes."""
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
    """Return what a step of a job takes, with its parts, under other assumptions, and other options if given."""
    options = options or run.options
    brief, extent = shorten_run(assumed.scale(options), run.workload)
    options = replace(options, accumulate=brief.accumulate)
    ran = run.under(options, assumed, extent=_counted(run, brief, extent), progress=progress)
    if not is_settled(ran):
        ran = run.under(options, assumed, extent=_counted(run, brief), progress=progress)
    return summarise(trace_of(ran))


def _counted(run: SimulatedRun, options: Options, extent: SimulatedIterations | None = None) -> SimulatedIterations:
    """Return `extent`, or all iterations that `options` ask for, without what sees messages to their end.

    They change no period.
    """
    if extent is None:
        periods = max(options.iterations_of(kind.workload) for kind in run.short().kinds)
        extent = SimulatedIterations.of(options, periods)
    return replace(extent, total=extent.end)
