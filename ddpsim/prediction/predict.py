"""Predict a step: simulate it, and what each of its doubts changes."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, median

from ddpsim.bucketing import BucketCaps, BucketPlan
from ddpsim.collectives.calibration import Calibration
from ddpsim.prediction.doubts import join
from ddpsim.prediction.doubts.causes import doubts_of
from ddpsim.prediction.doubts.doubt import Doubt, Ends
from ddpsim.prediction.periods import periods_under, with_assumptions
from ddpsim.prediction.prediction import Prediction
from ddpsim.prediction.simulated_run import SimulatedRun, leave_out_repeated
from ddpsim.simulation import Options, simulate_local
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.ddp_costs import remove_overlap_costs
from ddpsim.simulation.engine import plan_of, trace_of
from ddpsim.simulation.job import Job
from ddpsim.simulation.run import Progress
from ddpsim.topology.graph import Placement
from ddpsim.trace.metrics import summarise
from ddpsim.workload import Workload

_ROUNDING = 1e-9
"""Relative: what another order of a sum may change."""

_HALF = 0.5
"""Share of its step by which the job beside begins later at the other end of that doubt."""


def predict(
    job: Job, *, local_s: float | None = None, band: bool = True, progress: Progress | None = None
) -> Prediction:
    """Predict the iteration latency of a job.

    Args:
        job: its workload keeps its device's pace on any machine. A GPU's on a node without GPUs is replayed by timed
            layers (`single_clock`).
        local_s: one rank's period without DDP where it is known already; None simulates it.
        band: whether to tell what its doubts change; `with_band` does so afterwards.
        progress: called with iterations done and in all, in each of these runs.

    Raises:
        InputError: as `simulate` and `Topology.place`.
    """
    run = SimulatedRun.of(job)
    run.short(progress)
    if local_s is None:
        local_s = local_period_s(run.workload, run.options, progress, job.calibration, run.placement)
    prediction = _predict_run(run, local_s)
    return with_band(prediction, progress) if band else prediction


def predict_buckets(
    prediction: Prediction, caps: BucketCaps, plan: BucketPlan | None = None, progress: Progress | None = None
) -> Prediction:
    """Predict the same job with other buckets, without its band; what does not rest on these is not found anew."""
    return _predict_run(prediction.run.with_buckets(caps, plan), prediction.local_s, progress)


def _predict_run(run: SimulatedRun, local_s: float, progress: Progress | None = None) -> Prediction:
    """Return the prediction of a run, its band that of its iterations."""
    ran = run.short(progress)
    summary = summarise(trace_of(ran))
    return Prediction(run, summary, plan_of(ran), local_s, summary.iteration_low_s, summary.iteration_high_s)


def with_band(prediction: Prediction, progress: Progress | None = None) -> Prediction:
    """Return `prediction` with what each of its doubts changes, joined into its band.

    Args:
        prediction: whose band is of its iterations alone.
        progress: as that of `predict`.
    """
    sizes = [bucket.size_bytes for bucket in prediction.plan.buckets]
    doubts = doubts_of(prediction.workload, prediction.placement, prediction.options, prediction.calibration, sizes)
    free = list[Assumptions]()
    if prediction.placement.world_size > 1 and prediction.options.comm == "real":
        # One more assumption: computing and communicating at once slow neither of them.
        backend = prediction.options.backend_for(prediction.workload)
        free = [Assumptions(remove_overlap_costs(backend, prediction.calibration))]
    assumed = [end for doubt in doubts for end in (doubt.low, doubt.high) if end is not None]
    told = iter(periods_under(prediction, [*assumed, *free], progress))

    def ends_of(doubt: Doubt) -> Ends:
        found = [None if end is None else next(told) for end in (doubt.low, doubt.high)]
        low_s, high_s = (prediction.iteration_s if each is None else each.iteration_s for each in found)
        retimed = sum(each is not None and each.retimed for each in found)
        return Ends.of(doubt, (low_s, high_s), retimed=retimed)

    ends = tuple(map(ends_of, doubts))
    more_s = max((prediction.iteration_s - next(told).iteration_s for _ in free), default=0.0)
    hidden_s = more_s if more_s > _ROUNDING * prediction.iteration_s else 0.0
    joined = (*ends, *_phases(prediction, progress))
    banded = replace(prediction, ends=joined, hidden_comm_cost_s=hidden_s, read=None)
    low_s, high_s = join.positive_band(prediction.iteration_s, banded.doubts)
    return replace(banded, low_s=low_s, high_s=high_s)


def _phases(prediction: Prediction, progress: Progress | None) -> list[Ends]:
    """Return the step at two phases of the job beside, half of its step apart: nobody knows when it communicates."""
    options = prediction.options
    if options.beside is None or options.beside.idle:
        return []
    half = replace(options.beside, phase=(options.beside.phase + _HALF) % 1)
    now = Assumptions(prediction.calibration)
    later_s = with_assumptions(prediction.run, now, progress, options=replace(options, beside=half)).iteration_s
    low_s, high_s = sorted((prediction.iteration_s, later_s))
    remedy = "none: jobs begin when they begin"
    return [Ends("phase of the job beside", remedy, 1.0, (low_s, high_s), ((1.0, 1.0), (1.0, 1.0)), 0, 1)]


def without_beside(prediction: Prediction) -> Prediction:
    """Return the prediction of a job on the same nodes while that beside it does nothing; its band of its iterations.

    Its nodes are those that it has beside the other.
    """
    alone = prediction.run.without_beside()
    return replace(_predict_run(alone, prediction.local_s), plan=prediction.plan)


def gain_band(default: Prediction, other: Prediction, *, times: float = 1.0) -> tuple[float, float]:
    """Return the band of the share of the default's step that `other` saves, both under the same draws.

    A doubt that only one of them has, as of another link on another placement, moves that one alone.

    Args:
        times: micro-batches of a step of `other` over those of the default's.
    """
    gain = 1 - times * other.iteration_s / default.iteration_s
    ours, theirs = ({ends.name: ends.steps_s for ends in each.ends} for each in (default, other))
    causes = {ends.name: ends for each in (default, other) for ends in each.ends}
    unmoved, theirs_unmoved = (default.iteration_s,) * 2, (other.iteration_s,) * 2
    effects = []
    for name, cause in causes.items():
        pairs = zip(ours.get(name, unmoved), theirs.get(name, theirs_unmoved), strict=True)
        effects.append(join.effect(cause, gain, [1 - times * b / a for a, b in pairs]))
    return join.band(gain, effects)


def local_period_s(
    workload: Workload,
    options: Options,
    progress: Progress | None = None,
    calibration: Calibration | None = None,
    placement: Placement | None = None,
) -> float:
    """Return one rank's period without DDP: the median over cycles of accumulated gradients of the mean iteration.

    Where layers are left out it is the mean over all iterations, as with DDP. Of a pipeline it is a rank's equal share
    of what one process takes for all micro-batches.

    Args:
        placement: as that of `simulate_local`.
    """
    forwards, ranks = options.forwards, options.cut.stages
    options, more = leave_out_repeated(options.accumulated, workload)
    periods = [it.iteration_s for it in simulate_local(workload, options, progress, calibration, placement)]
    cycle = options.accumulate
    centre = fmean if any(options.drop.values()) else median
    steps = [periods[begin : begin + cycle] for begin in range(0, len(periods), cycle)]
    means = [fmean(step) if not more else (sum(step) + more * step[-2]) / (cycle + more) for step in steps]
    return forwards * centre(means) / ranks
