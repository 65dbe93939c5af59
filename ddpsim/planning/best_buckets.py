"""The best buckets on one machine and node count: caps tried side by side, and an exact partition.

Start at `best_buckets`: it tries uniform caps and one list of buckets of its own, and keeps the simplest plan within
`TELLING` of the fastest. `launch_priors` names the constants of the host's time that nobody measured, on which a gain
may rest. The list of buckets is `best_partition`'s, an exact search over partitions of the arrival order: gradients
become ready one after another; a bucket is launched when its last one is, and collectives run one after another. With
ready times r, and a collective's time t(bytes), the earliest end of the first j gradients is

    f(j) = min over i < j of max(f(i), r(j)) + t(bytes of gradients i+1 .. j)

which is exact because f is what a later bucket sees of the earlier ones (Bellman). What it leaves out (two collectives
in flight, hooks and copies) the simulation of the result puts back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ddpsim.bucketing import BucketCaps, BucketPlan
from ddpsim.bucketing.caps import DEFAULT_CAP_MB
from ddpsim.bucketing.plan import custom_plan
from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.constant import Constant
from ddpsim.collectives.execute import Collectives
from ddpsim.common.units import MIB
from ddpsim.planning.bound import Bound, bound_of
from ddpsim.planning.rows import AlternativePlan, PlanRow
from ddpsim.planning.savings import Saving, savings
from ddpsim.planning.worth import WORTH_IT, Trial, decide, is_list_worth_it
from ddpsim.prediction.answers import Answers
from ddpsim.prediction.predict import gain_band
from ddpsim.prediction.prediction import Band, Prediction
from ddpsim.prediction.simulated_run import SimulatedRun
from ddpsim.simulation.job import Job
from ddpsim.simulation.run import Progress

LAUNCH_COSTS = ("hook_s", "launch_s", "finish_s", "forward_s", "buffer_s")
"""Constants of DDP that are a GPU's host's time."""


def launch_priors(backend: str, calibration: Calibration | None) -> list[Constant]:
    """Return the constants of the host's time that are priors, not measured."""
    constants = constants_in_force(backend, calibration)
    named = [constants[f"{backend}.ddp.{name}"] for name in LAUNCH_COSTS]
    return [constant for constant in named if not constant.fitted]


def constants_in_force(backend: str, calibration: Calibration | None) -> Mapping[str, Constant]:
    """Return the constants of a calibration by name; None stands for the priors."""
    return (calibration or Calibration.priors(backend)).constants


def best_partition(
    ready_s: Sequence[float],
    sizes_bytes: Sequence[int],
    collective_s: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    least_bytes: int = 0,
) -> list[int]:
    """Return the lengths of the buckets that end the last collective earliest, in arrival order.

    Exact for one stream on which collectives follow each other: dynamic programming over the end of the first j
    gradients, end[j] = min over i < j of max(end[i], ready[j - 1]) + collective(bytes of i..j). Going on from the
    earliest end of the first i loses nothing, for a later one could only delay what follows. Quadratic in gradients, a
    vector a step.

    Args:
        ready_s: when each gradient is ready, ascending.
        sizes_bytes: bytes of each gradient.
        collective_s: seconds a collective takes and occupies its stream, by bytes; vectorised.
        least_bytes: of a bucket; one bucket where all gradients have fewer.
    """
    count = len(ready_s)
    before = np.concatenate([[0.0], np.cumsum(sizes_bytes, dtype=np.float64)])
    least = min(least_bytes, before[-1])
    end = np.zeros(count + 1)
    cut = np.zeros(count + 1, dtype=np.int64)
    for j in range(1, count + 1):
        sizes = before[j] - before[:j]  # of a bucket of the gradients from i on up to j, for every i
        ends = np.where(sizes < least, np.inf, np.maximum(end[:j], ready_s[j - 1]) + collective_s(sizes))
        cut[j] = int(np.argmin(ends))
        end[j] = ends[cut[j]]
    # Back from the last gradient along the cuts.
    lengths = []
    j = count
    while j > 0:
        lengths.append(int(j - cut[j]))
        j = int(cut[j])
    return lengths[::-1]


CAPS_MB = (1.0, 2.0, 5.0, 10.0, 15.0, 25.0, 40.0, 60.0, 100.0, 200.0)
"""Uniform caps a plan tries, in MiB: 1 to 200 by factors of 1.5 to 2.5, torch's own 25 among them."""

TELLING = 0.005
"""Difference below which the simpler plan is preferred: one cap to a list, a cap nearer to torch's to a giant one.

Chosen as half of what a gain must be to be advised (`worth.WORTH_IT`); it moves which plan is named, no time.
"""

LEAST_BUCKET = MIB
"""Bytes of the smallest bucket of a list that is searched for: smaller ones save nothing that survives another run."""


def best_buckets(answers: Answers, job: Job, caps: Sequence[BucketCaps] | None = None) -> PlanRow:
    """Return the row of `choose_buckets`, with where its gain comes from, what binds its step and on which priors."""
    job = replace(job, options=replace(job.options, caps=BucketCaps(), plan=None))
    default = answers.predict(job)
    row = choose_buckets(answers, job, default, caps)
    chosen = job
    if row.best is not default:
        kind = tuple[Saving, ...]
        saved = answers.ask(kind, lambda: savings(default, row.best, job.calibration), job, caps, "savings")
        row = replace(row, savings=saved)
    if not row.keep_default:
        chosen = _with_buckets(job, row.best.options.caps, row.best.options.plan)
    row = replace(row, bound=answers.ask(Bound, lambda: bound_of(row.chosen, job.calibration), chosen, "bound"))
    if not row.chosen.workload.estimated:
        return row
    backend = job.options.backend_for(row.chosen.workload)
    return replace(row, priors=tuple(launch_priors(backend, job.calibration)))


def _with_buckets(job: Job, caps: BucketCaps, plan: BucketPlan | None) -> Job:
    return replace(job, options=replace(job.options, caps=caps, plan=plan))


_Tried = tuple[tuple[float, ...], tuple[tuple[tuple[int, ...], ...], float] | None]
"""The iteration with each uniform cap, in order, and the partition's buckets with the iteration with those."""


def choose_buckets(
    answers: Answers, job: Job, default: Prediction, caps: Sequence[BucketCaps] | None = None
) -> PlanRow:
    """Return the plan that makes an iteration shortest, beside torch's default.

    Tried are torch's default, uniform caps, and the exact best partition of a pipeline model; each is simulated. Of a
    scheme whose messages are not buckets the default alone is. Of the single caps within `TELLING` of the fastest the
    simplest is considered: of those worth it, where the fastest is. The partition, a list of caps, is considered only
    where it beats all of them by far (`is_list_worth_it`). `decide` says which of the two is advised or worth a trial.

    Args:
        answers: where predictions are looked up.
        job: with torch's default.
        default: its prediction.
        caps: tried beside torch's default, instead of uniform caps and the partition; each with a `bucket_cap_mb`.

    Raises:
        InputError: as `predict`.
    """
    # One answer of all times, and not a prediction a cap: trying needs no band, and shares what was resolved.
    uniform_s, partition = answers.ask(
        _Tried, lambda: _try_all(default, caps, answers.progress), job, caps, "tried buckets"
    )
    uniform_caps = (caps or _uniform(default)) if uniform_s else ()
    uniform = [TriedBuckets(cap, None, seconds) for cap, seconds in zip(uniform_caps, uniform_s, strict=True)]
    torchs = TriedBuckets(BucketCaps(), None, default.iteration_s)
    tried = [torchs, *uniform]
    considered = [_choose_simplest(tried, torchs)]
    if partition is not None:
        # The partition is exact in the model of one stream only; here stands what it takes simulated.
        listed = TriedBuckets(BucketCaps(), custom_plan(default.workload.parameters, partition[0]), partition[1])
        fastest_s = min(each.iteration_s for each in tried)
        if is_list_worth_it(listed.iteration_s, fastest_s, torchs.iteration_s):
            considered.append(listed)
            tried.append(listed)
    # Only what is considered gets a band: at most two predictions of the dozen that were tried.
    banded = list[tuple[Prediction, Band]]()
    for each in considered:
        if each is not torchs:
            prediction = answers.predict(_with_buckets(job, each.caps, each.plan))
            gain = 1 - prediction.iteration_s / default.iteration_s
            banded.append((prediction, (gain, *gain_band(default, prediction))))
    curve = ((each.caps.bucket_cap_mb or 0.0, each.iteration_s) for each in uniform)
    row = PlanRow(default, default, tuple(curve), min(each.iteration_s for each in tried))
    if banded:
        advised, trial = decide(banded)
        best, (_, low, high) = advised or trial or banded[0]
        shown = [best, *([] if trial is None else [trial[0]])]
        row = replace(
            row,
            best=best,
            best_low=low,
            best_high=high,
            others=tuple(
                AlternativePlan(each.plan.torch, each.iteration_s)
                for each, _ in banded
                if all(each is not other for other in shown)
            ),
            trial=None if trial is None else Trial(trial[0].plan.torch, *trial[1]),
        )
    return row


def _uniform(default: Prediction) -> list[BucketCaps]:
    """Return the caps that are tried where none are given."""
    total_mb = default.workload.gradient_bytes / MIB
    sizes = [*(cap for cap in CAPS_MB if cap < total_mb), float(np.ceil(total_mb))]
    return [BucketCaps(bucket_cap_mb=size) for size in sizes]


def _try_all(default: Prediction, caps: Sequence[BucketCaps] | None, progress: Progress | None) -> _Tried:
    attempt = partial(try_buckets, default.run, progress=progress)
    if caps is not None or not rests_on_buckets(default.run):
        return tuple(attempt(cap).iteration_s for cap in caps or ()), None
    uniform_s = tuple(attempt(cap).iteration_s for cap in _uniform(default))
    if (partition := pipeline_plan(default, default.calibration)) is None:
        return uniform_s, None
    return uniform_s, (tuple(partition.groups()), attempt(BucketCaps(), partition).iteration_s)


def rests_on_buckets(run: SimulatedRun) -> bool:
    """Whether what is sent rests on buckets: of DDP, and of schemes whose messages are others at another cap."""
    default, smallest = (run.with_buckets(caps).schedule() for caps in (BucketCaps(), BucketCaps(bucket_cap_mb=0)))
    return default != smallest


@dataclass(frozen=True, slots=True)
class TriedBuckets:
    """Buckets that were tried, by caps or as a plan lists them, and the iteration with them."""

    caps: BucketCaps
    plan: BucketPlan | None
    iteration_s: float


def try_buckets(
    run: SimulatedRun,
    caps: BucketCaps,
    plan: BucketPlan | None = None,
    *,
    progress: Progress | None = None,
) -> TriedBuckets:
    """Return buckets, made by `caps` or as `plan` lists them, and the period of the job with them."""
    return TriedBuckets(caps, plan, run.with_buckets(caps, plan).plan_and_period(progress)[1])


def _choose_simplest(tried: Sequence[TriedBuckets], default: TriedBuckets) -> TriedBuckets:
    """Return, of those within `TELLING` of the fastest, torch's default or else the cap nearest to torch's.

    Where some of those are worth it, only these are considered: a simpler one must not lose what makes it worth it.
    """
    fastest = min(each.iteration_s for each in tried)
    close = [each for each in tried if each.iteration_s <= fastest * (1 + TELLING)]
    close = [each for each in close if 1 - each.iteration_s / default.iteration_s > WORTH_IT] or close

    def distance(each: TriedBuckets) -> float:
        cap = each.caps.bucket_cap_mb
        return 0.0 if cap is None else 1.0 + abs(np.log(max(cap, 1e-3) / DEFAULT_CAP_MB))

    return min(close, key=distance)


def pipeline_plan(default: Prediction, calibration: Calibration | None = None) -> BucketPlan | None:
    """Return the exact best partition of the pipeline model; None where gradients are of several kinds.

    None too where buckets are compressed, differ from iteration to iteration, are not filled in arrival order, or split
    a compiled step: the model knows none of these.

    Args:
        default: a prediction whose gradients' ready times, ranks and algorithm are used.
    """
    parameters, options = default.workload.parameters, default.options
    if options.compression != "none" or options.drop or options.order is not None or options.compiled:
        return None
    if options.assignment_in_force != "rebuilt":
        return None
    if len({(p.dtype, p.device) for p in parameters}) > 1 or any(p.sparse for p in parameters):
        return None
    synced = [it for it in default.summarised_trace.of_rank(0) if it.synced and it.gradients]
    if not synced or default.summary.world_size == 1:
        return None
    gradients = sorted(synced[0].gradients, key=lambda g: g.hook_s)
    if len(gradients) < len(parameters):
        return None
    # All gradients in the order in which the host hooked them, and a collective's time as if alone on the links.
    backend = options.backend_for(default.workload)
    collectives = Collectives(
        None, default.placement, backend=backend, calibration=calibration, options=options.collective
    )
    order = [g.parameter for g in gradients]
    ready = np.maximum.accumulate([g.ready_s for g in gradients]) - synced[0].start_s
    sizes = [parameters[index].size_bytes for index in order]
    lengths = best_partition(ready.tolist(), sizes, _interpolate(collectives.estimate_s, sum(sizes)), LEAST_BUCKET)
    ends = np.cumsum(lengths)
    groups = [tuple(order[end - length : end]) for length, end in zip(lengths, ends, strict=True)]
    return custom_plan(parameters, groups)


def _interpolate(seconds: Callable[[int], float], largest: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return `seconds` as a vectorised function, linear in the logarithm of its argument between 64 samples."""
    sizes = np.array(sorted(set(np.geomspace(64, max(largest, 128), 64).astype(np.int64).tolist())))
    times = np.array([seconds(int(size)) for size in sizes])
    log_sizes, log_times = np.log(sizes), np.log(times)
    return lambda size: np.exp(np.interp(np.log(np.maximum(size, 64)), log_sizes, log_times))
