"""Predict a step: simulate it, then simulate what each of its doubts changes.

The path of one prediction from Python, a file a step; the command reads its options in `ddpsim/cli/predict.py`, makes
the `Job` there and joins at step 3. Read it here, then open each:

1. `named.py`: `ddpsim.predict` takes names, paths or a `Job`; `arguments.py` loads them.
2. `models.py`: the workload is put on the machine's own GPU.
3. `predict` below, of that `Job`: `SimulatedRun.of` (`simulated_run.py`) places its ranks and fixes its options.
4. `SimulatedRun.short` simulates as few iterations as the period needs. That is the room `ddpsim.simulation`: `resolve`
   finds costs, schedule and ranks, `build` writes the step as a graph, `run` interprets it on SimPy.
5. `summarise` (`ddpsim.trace.metrics`) turns the iterations into the step and its parts.
6. `local_period_s`: the same rank without DDP, which scaling efficiency is held against.
7. `with_band`: `doubts/causes.py` lists what nobody measured, `periods.py` returns the step at both ends of each doubt,
   `doubts/join.py` adds them up to the 80 % band.
8. `prediction.py`: the `Prediction`, which is its own document; `memory.py`, `path.py` and `sensitivities.py` compute
   the parts of it that are read when they are asked for.
"""

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
from ddpsim.simulation.communication import Assumptions
from ddpsim.simulation.ddp_costs import remove_overlap_costs
from ddpsim.simulation.engine import plan_of, simulate_local, trace_of
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
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
        progress: called with iterations done and in all, of each run that is simulated.

    Raises:
        InputError: as `simulate` and `Topology.place`.
    """
    run = SimulatedRun.of(job)  # next: simulated_run.py
    run.short(progress)  # simulated here, with its progress; all below reads this run
    if local_s is None:
        local_s = local_period_s(run.workload, run.options, progress, job.calibration, run.placement)
    prediction = _predict_run(run, local_s)  # the band is that of its iterations, until `with_band`
    return with_band(prediction, progress) if band else prediction


def predict_buckets(
    prediction: Prediction, caps: BucketCaps, plan: BucketPlan | None = None, progress: Progress | None = None
) -> Prediction:
    """Predict the same job with other buckets, without its band.

    Only what depends on buckets is resolved again: `plan` and `search` try dozens of caps on one job.
    """
    return _predict_run(prediction.run.with_buckets(caps, plan), prediction.local_s, progress)


def _predict_run(run: SimulatedRun, local_s: float, progress: Progress | None = None) -> Prediction:
    """Return the prediction of a run, its band that of its iterations."""
    ran = run.short(progress)
    summary = summarise(trace_of(ran))
    return Prediction(run, summary, plan_of(ran), local_s, summary.iteration_low_s, summary.iteration_high_s)


def with_band(prediction: Prediction, progress: Progress | None = None) -> Prediction:
    """Return `prediction` with the step at both ends of each of its doubts, and those joined into its band.

    Args:
        prediction: whose band is that of its iterations alone.
        progress: as that of `predict`.
    """
    sizes = [bucket.size_bytes for bucket in prediction.plan.buckets]
    doubts = doubts_of(prediction.workload, prediction.placement, prediction.options, prediction.calibration, sizes)
    assumptions = [end for doubt in doubts for end in (doubt.low, doubt.high) if end is not None]
    overlaps = prediction.placement.world_size > 1 and prediction.options.comm == "real"
    if overlaps:
        # One more, last: computing and communicating at once slow neither of them. It is no doubt; the difference is
        # `hidden_comm_cost_s`.
        backend = prediction.options.backend_for(prediction.workload)
        assumptions.append(Assumptions(remove_overlap_costs(backend, prediction.calibration)))
    # All assumptions in one call, for `periods.py` retimes them in one pass over the graph. The steps come back in the
    # order of `assumptions`, and are taken off one by one: low and high of each doubt, where it has them.
    steps = iter(periods_under(prediction, assumptions, progress))

    def ends_of(doubt: Doubt) -> Ends:
        pair = [None if end is None else next(steps) for end in (doubt.low, doubt.high)]
        low_s, high_s = (prediction.iteration_s if step is None else step.iteration_s for step in pair)
        retimed = sum(step is not None and step.retimed for step in pair)
        return Ends.of(doubt, (low_s, high_s), retimed=retimed)

    ends = tuple(map(ends_of, doubts))
    overlap_cost_s = max(prediction.iteration_s - next(steps).iteration_s, 0.0) if overlaps else 0.0
    hidden_s = overlap_cost_s if overlap_cost_s > _ROUNDING * prediction.iteration_s else 0.0
    banded = replace(prediction, ends=(*ends, *_phases(prediction, progress)), hidden_comm_cost_s=hidden_s, read=None)
    low_s, high_s = join.positive_band(prediction.iteration_s, banded.doubts)
    return replace(banded, low_s=low_s, high_s=high_s)


def _phases(prediction: Prediction, progress: Progress | None) -> list[Ends]:
    """Return the doubt of when another job on the same network communicates: its step half a step of it later.

    It is no assumption on costs, which could be retimed: the other job runs in the same simulation, so that this is
    simulated anew.
    """
    options = prediction.options
    if options.beside is None or options.beside.idle:
        return []
    half = replace(options.beside, phase=(options.beside.phase + _HALF) % 1)
    now = Assumptions(prediction.calibration)
    later_s = with_assumptions(prediction.run, now, progress, options=replace(options, beside=half)).iteration_s
    # Which of the two phases is the slow one is only known afterwards.
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
    causes = {ends.name: ends for each in (default, other) for ends in each.ends}
    default_ends, other_ends = ({ends.name: ends.steps_s for ends in each.ends} for each in (default, other))
    # A doubt is one draw of the world: both steps are taken at the same end of it, and only their ratio is banded. Two
    # bands subtracted would count what slows both alike twice, and hardly any change would ever be advised.
    effects = []
    for name, cause in causes.items():
        default_s = default_ends.get(name, (default.iteration_s,) * 2)
        other_s = other_ends.get(name, (other.iteration_s,) * 2)
        gains = [1 - times * b / a for a, b in zip(default_s, other_s, strict=True)]
        effects.append(join.effect(cause, gain, gains))
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
    forwards, stages = options.forwards, options.cut.stages
    options, left_out = leave_out_repeated(options.accumulated, workload)
    periods = [it.iteration_s for it in simulate_local(workload, options, progress, calibration, placement)]
    cycle = options.accumulate
    # Where layers are left out iterations differ by what was drawn, and the median would drop the rare ones.
    centre = fmean if any(options.drop.values()) else median
    steps = [periods[begin : begin + cycle] for begin in range(0, len(periods), cycle)]
    # The last but one micro-batch of a step stands for those like it that were not simulated.
    means = [fmean(step) if not left_out else (sum(step) + left_out * step[-2]) / (cycle + left_out) for step in steps]
    return forwards * centre(means) / stages
