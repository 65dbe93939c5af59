"""Hold a prediction against a measured trace: the step, the overhead, every bucket, and what trivial predictors say.

Trivial predictors of a step, what a simulator must beat: a line each, without launches, hooks or copies.

Whose times they are fed with is the caller's to say: `ddpsim.planning.validate` gives a prediction's own, a campaign
gives measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from ddpsim.common.errors import InputError, TraceError
from ddpsim.common.other_work import OtherWork
from ddpsim.common.strict import list_mappings
from ddpsim.planning.validation_result import BucketError, ComparedQuantity, ComparedRatio, ErrorTerm, Validation
from ddpsim.prediction.document import BUCKET_TIMES
from ddpsim.prediction.path import CriticalPath, Sensitivity
from ddpsim.trace.cycles import follows_schedule, fused_by_times, sync_length
from ddpsim.trace.metrics import PARTS, BucketSummary, Summary, length, summarise, union
from ddpsim.trace.records import Trace


@dataclass(frozen=True, slots=True)
class Baselines:
    """What trivial predictors say of the mean iteration, in seconds.

    Attributes:
        one_process_s: communication costs nothing.
        sum_s: nothing of it hides.
        max_s: all of it hides, as far as there is something to hide under.
        in_order_pipeline_s: a bucket starts at the later of its last gradient and the end of the bucket before it.
    """

    one_process_s: float
    sum_s: float
    max_s: float
    in_order_pipeline_s: float


def baselines(
    buckets: Iterable[tuple[float, float]],
    *,
    local_s: float,
    optimizer_s: float,
    under_s: float,
    communication_s: float,
    sync_every: int = 1,
) -> Baselines:
    """Return what the trivial predictors say.

    Args:
        buckets: in launch order: when its last gradient is ready, from the start of forward, and its allreduce's time.
        local_s: one process's iteration.
        optimizer_s: the part of it after backward; its share where only one iteration in `sync_every` has one.
        under_s: the part of it that communication may hide under: backward, or all of it.
        communication_s: time on the wire of all buckets; less than their sum where they overlap one another.
        sync_every: all but every so many iterations are one process's.
    """
    end_s = 0.0
    for ready_s, time_s in buckets:
        end_s = max(end_s, ready_s) + time_s

    def mean(synced_s: float) -> float:
        return local_s + (synced_s - local_s) / sync_every

    return Baselines(
        one_process_s=local_s,
        sum_s=mean(local_s + communication_s),
        max_s=mean(local_s - under_s + max(under_s, communication_s)),
        in_order_pipeline_s=mean(max(local_s, end_s + optimizer_s)),
    )


Pair = tuple[Mapping[str, object], BucketSummary]
"""A bucket as predicted, and as measured."""


def validate(prediction: Mapping[str, object], measured: Trace) -> Validation:
    """Hold a predict document against a measured trace of the same configuration.

    One process's time is the run's own where its provenance has `local_s`, else the prediction's.

    Raises:
        TraceError: a trace without iterations, or of another world size, or a bucket of another size than predicted.
    """
    summary = summarise(measured)
    predicted = list_mappings(prediction["buckets"])
    alike = _pair_like_content(predicted, summary.buckets) if follows_schedule(measured) else []
    # Where cycles fused other gradients on either side, what carries the same is compared, and the step.
    apart = len(alike) < max(len(predicted), len(summary.buckets)) and not fused_by_times(measured)
    pairs = _pair_buckets(predicted, summary.buckets) if apart else alike
    _check_same(prediction, pairs, summary)
    own = measured.provenance.get("local_s")
    known = isinstance(own, float) and math.isfinite(own)
    local_s = _float(prediction["local_s"])
    measured_local_s = _float(own) if known else local_s
    step, predicted_step = summary.iteration_s, _float(prediction["iteration_s"])
    return Validation(
        iterations=ComparedQuantity.of(step, predicted_step),
        overhead=ComparedQuantity.of(step - measured_local_s, predicted_step - local_s),
        local_source="run" if known else "prediction",
        buckets=tuple(_bucket_error(ours, theirs, step) for ours, theirs in pairs),
        terms=(*_step_terms(prediction, summary), *_bucket_terms(pairs, step)),
        baselines=_baselines(prediction, step, measured_local_s, sync_length(measured)),
        path=CriticalPath.read(prediction),
        helps=Sensitivity.read(prediction),
        first=_compare_first(prediction.get("first"), measured.provenance.get("first")),
        other_work=OtherWork.read(measured.provenance),
        ratio=_compare_turns(measured.provenance.get("turns"), predicted_step, local_s),
    )


def _compare_turns(turns: object, predicted_s: float, predicted_local_s: float) -> ComparedRatio | None:
    """Return the ratio to one process of a run that took turns with one; None of any other."""
    if turns is None:
        return None
    rounds = [(_float(turn["step_s"]), _float(turn["local_s"])) for turn in list_mappings(turns)]
    if not rounds:
        return None
    drift = predicted_local_s / median(local_s for _, local_s in rounds) - 1
    return ComparedRatio.of([step_s / local_s for step_s, local_s in rounds], predicted_s / predicted_local_s, drift)


def _compare_first(predicted: object, measured: object) -> dict[str, ComparedQuantity]:
    """Return the construction and the first iterations that both sides tell; a run tells as many as it discards."""
    if not isinstance(predicted, Mapping) or not isinstance(measured, Mapping):
        return {}
    found = {}
    construction = predicted.get("construction")
    if isinstance(construction, Mapping):
        ours, theirs = (_float(each.get("construction_s")) for each in (construction, measured))
        found["construction"] = ComparedQuantity.of(theirs, ours)
    iterations = measured.get("iterations_s")
    for row, theirs_s in zip(list_mappings(predicted.get("iterations")), iterations or (), strict=False):
        pair = ComparedQuantity.of(_float(theirs_s), _float(row.get("iteration_s")))
        found[f"iteration {row.get('index')}"] = pair
    return found


def _pair_buckets(predicted: Sequence[Mapping[str, object]], measured: Sequence[BucketSummary]) -> list[Pair]:
    """Return the buckets of either side by index: where layers are left out, one side may not have met all of them."""
    ours = {bucket["index"]: bucket for bucket in predicted}
    return [(ours[theirs.index], theirs) for theirs in measured if theirs.index in ours]


def _pair_like_content(predicted: Sequence[Mapping[str, object]], measured: Sequence[BucketSummary]) -> list[Pair]:
    """Return the messages of either side that carry the same, the n-th of the same beside the n-th.

    A schedule that plans its order by the times it knows may have messages in another order on either side.
    """
    ours: dict[tuple[object, ...], list[Mapping[str, object]]] = {}
    for bucket in predicted:
        ours.setdefault(_content(bucket), []).append(bucket)
    theirs = [(ours.get(_content(asdict(bucket)), []), bucket) for bucket in measured]
    return [(same.pop(0), bucket) for same, bucket in theirs if same]


def _content(bucket: Mapping[str, object]) -> tuple[object, ...]:
    parameters = bucket.get("parameters")
    return bucket["size_bytes"], tuple(parameters) if isinstance(parameters, list | tuple) else None


def _check_same(prediction: Mapping[str, object], pairs: Sequence[Pair], summary: Summary) -> None:
    if prediction["world_size"] != summary.world_size:
        what = f"the run has {summary.world_size} ranks, the prediction {prediction['world_size']}"
        raise TraceError(what, remedy="predict with the run's `nodes` and `gpus_per_node`")
    differing = next((theirs.index for ours, theirs in pairs if ours["size_bytes"] != theirs.size_bytes), None)
    if differing is not None:
        counts = len(summary.buckets), len(list_mappings(prediction["buckets"]))
        what = f"the run has {counts[0]} buckets, the prediction {counts[1]}; they differ from bucket {differing} on"
        raise TraceError(what, remedy="predict with the run's bucket options and `assignment`")


def _bucket_error(ours: Mapping[str, object], theirs: BucketSummary, step_s: float) -> BucketError:
    mine = {name: _float(ours[name]) for name in BUCKET_TIMES}
    real = {name: float(getattr(theirs, name)) for name in BUCKET_TIMES}
    difference = {name: (mine[name] - real[name]) / step_s for name in BUCKET_TIMES}
    return BucketError(theirs.index, theirs.size_bytes, real, mine, difference)


def _step_terms(prediction: Mapping[str, object], summary: Summary) -> list[ErrorTerm]:
    pairs = [(part, float(getattr(summary, part)), _float(prediction[part])) for part in PARTS]
    return [ErrorTerm(part.removesuffix("_s"), m, p, (p - m) / summary.iteration_s) for part, m, p in pairs]


def _bucket_terms(pairs: Sequence[Pair], step_s: float) -> list[ErrorTerm]:
    """Return launch, skew and wire, summed over buckets, and the wire's halves.

    The wire times of each side are fitted by latency + bytes / bandwidth; the two are compared apart where bucket sizes
    differ enough to tell them.
    """
    if not pairs:
        return []
    ours = [_Way.of(bucket) for bucket, _ in pairs]
    theirs = [_Way.of(asdict(bucket)) for _, bucket in pairs]
    sizes = [bucket.size_bytes for _, bucket in pairs]
    sums = {
        "launch": (sum(way.launch_s for way in theirs), sum(way.launch_s for way in ours)),
        "skew": (sum(way.skew_s for way in theirs), sum(way.skew_s for way in ours)),
    }
    sums["wire"] = (sum(way.wire_s for way in theirs), sum(way.wire_s for way in ours))
    real, mine = _line(sizes, [way.wire_s for way in theirs]), _line(sizes, [way.wire_s for way in ours])
    if real and mine:
        count, total = len(sizes), sum(sizes)
        sums["latency"] = (real[0] * count, mine[0] * count)
        sums["bandwidth"] = (real[1] * total, mine[1] * total)
    return [ErrorTerm(name, m, p, (p - m) / step_s) for name, (m, p) in sums.items()]


@dataclass(frozen=True, slots=True)
class _Way:
    """What a bucket spends between ready and finished."""

    launch_s: float
    skew_s: float
    wire_s: float

    @classmethod
    def of(cls, bucket: Mapping[str, object]) -> _Way:
        ready, launched, started, finished = (_float(bucket[name]) for name in BUCKET_TIMES)
        wire = bucket.get("wire_s")
        moving = started if wire is None else _float(wire)
        return cls(max(0.0, launched - ready), max(0.0, moving - started), finished - moving)


def _line(sizes: Sequence[int], times: Sequence[float]) -> tuple[float, float] | None:
    """Return intercept and slope of least squares; None where there are too few distinct sizes."""
    if len(sizes) < 3 or max(sizes) < 2 * max(min(sizes), 1):
        return None
    mean_size, mean_time = fmean(sizes), fmean(times)
    spread = sum((size - mean_size) ** 2 for size in sizes)
    slope = sum((s - mean_size) * (t - mean_time) for s, t in zip(sizes, times, strict=True)) / spread
    return mean_time - slope * mean_size, slope


def _baselines(
    prediction: Mapping[str, object], step_s: float, measured_local_s: float, sync_every: int
) -> dict[str, Mapping[str, float | None]]:
    """Return what trivial predictors say of the step, fed with the prediction's own times, not with measured ones."""
    local_s = _float(prediction["local_s"])
    ways = [
        (_float(b["ready_s"]), _Way.of(b).wire_s, _float(b["finished_s"])) for b in list_mappings(prediction["buckets"])
    ]
    said = baselines(
        ((ready, wire) for ready, wire, _ in ways),
        local_s=local_s,
        optimizer_s=_float(prediction["optimizer_s"]),
        under_s=_float(prediction["backward_compute_s"]),
        communication_s=length(union((finished - wire, finished) for _, wire, finished in ways)),
        sync_every=sync_every,
    )
    predictors = {
        "one_process": said.one_process_s,
        "one_process_plus_communication": said.sum_s,
        "max_of_backward_and_communication": said.max_s,
        "in_order_pipeline": said.in_order_pipeline_s,
    }
    overhead = step_s - measured_local_s
    return {
        name: {
            "predicted_s": seconds,
            "error": seconds / step_s - 1,
            "overhead_error": (seconds - local_s) / overhead - 1 if overhead > 0 else None,
        }
        for name, seconds in predictors.items()
    }


def _float(value: object) -> float:
    if not isinstance(value, int | float):
        raise InputError(f"{value!r} is not a number")
    return float(value)
