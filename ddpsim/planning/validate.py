"""Hold a prediction against a measured trace: the step, the overhead, every bucket, and what trivial predictors say.

Start at `validate`; it returns a `Validation`, which stands before it with the quantities it is made of. Errors are
predicted / measured - 1, signed; a bucket's are (predicted - measured) / measured step.

`baselines` are the trivial predictors that a simulator must beat, a line each, without launches, hooks or copies. Whose
times they are fed with is the caller's choice: `validate` gives a prediction's own, a campaign gives measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median

from ddpsim.common.errors import InputError, TraceError
from ddpsim.common.markup import summary_card
from ddpsim.common.other_work import OtherWork
from ddpsim.common.strict import list_mappings
from ddpsim.common.tables import ResultTable, table_of
from ddpsim.common.units import format_time
from ddpsim.prediction.document import BUCKET_TIMES
from ddpsim.prediction.path import CriticalPath, Sensitivity
from ddpsim.trace.cycles import follows_schedule, fused_by_times, sync_length
from ddpsim.trace.metrics import PARTS, BucketSummary, Summary, length, summarise, union
from ddpsim.trace.records import Trace

COMPARED, TURNS, FIRST, TRIVIAL, TERMS, BUCKETS = (
    "Predicted and measured",
    "In turns with one process",
    "The first iterations",
    "Trivial predictors",
    "Terms",
    "Errors of buckets",
)
"""Titles of a validation's tables, in order."""
_HALVES = ("latency", "bandwidth")


@dataclass(frozen=True, slots=True)
class ComparedQuantity:
    """One quantity, measured and predicted, and the signed relative error; None where nothing was measured."""

    measured_s: float
    predicted_s: float
    error: float | None

    @classmethod
    def of(cls, measured_s: float, predicted_s: float) -> ComparedQuantity:
        """Return both with predicted / measured - 1."""
        return cls(measured_s, predicted_s, predicted_s / measured_s - 1 if measured_s > 0 else None)


@dataclass(frozen=True, slots=True)
class ComparedRatio:
    """A run's step over one process's step, both timed in the same rounds of turns, and what was predicted of it.

    Attributes:
        measured: the median over the rounds.
        low, high: the 80 % interval of that median, by the rounds' median absolute deviation.
        rounds: how many there were.
        drift: one process's step as predicted over that of the rounds, less one: how far the machine's pace moved since
            the workload was recorded.
    """

    measured: float
    low: float
    high: float
    rounds: int
    predicted: float
    drift: float = 0.0

    @classmethod
    def of(cls, ratios: Sequence[float], predicted: float, drift: float = 0.0) -> ComparedRatio:
        """Return the comparison of each round's ratio with a prediction."""
        middle = median(ratios)
        deviation = 1.4826 * median(abs(ratio - middle) for ratio in ratios)  # of a normal law, by its MAD
        half = _Z_90 * 1.2533 * deviation / math.sqrt(len(ratios))  # a median errs sqrt(pi / 2) as much as a mean
        return cls(middle, middle - half, middle + half, len(ratios), predicted, drift)

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def is_clear(self) -> bool:
        """Whether the rounds tell what communication costs, and the machine kept the pace at which it was recorded.

        The interval is half of that cost each way at most: the rounds of a machine that others use, or whose clock
        changes, differ by more. And computing that became slower or faster since the prediction was made moves the
        ratio by no more than `MOVED`.
        """
        return self.high - self.measured <= (self.measured - 1) / 2 and abs(self.moved) <= MOVED

    @property
    def moved(self) -> float:
        """What the drift alone changes of the predicted ratio: the wire takes as long at any pace of computing."""
        return -self.drift * (1 - 1 / self.measured)

    def document(self) -> dict[str, float | int | bool]:
        """Return the comparison as JSON."""
        return {**asdict(self), "error": self.error, "is_clear": self.is_clear}


MOVED = 0.05
"""Of a ratio: as much as a prediction of real computation is meant to be off in the median. Chosen by hand."""
_Z_90 = 1.2816
"""The 90th percentile of a standard normal law."""


@dataclass(frozen=True, slots=True)
class BucketError:
    """One bucket's times from the start of forward and their errors as a share of the measured step."""

    index: int
    size_bytes: int
    measured: Mapping[str, float]
    predicted: Mapping[str, float]
    errors: Mapping[str, float]

    def document(self) -> dict[str, float]:
        """Return the bucket as JSON values."""
        return {
            "index": self.index,
            "size_bytes": self.size_bytes,
            **{f"measured_{name}": value for name, value in self.measured.items()},
            **{f"predicted_{name}": value for name, value in self.predicted.items()},
            **{f"{name.removesuffix('_s')}_error": value for name, value in self.errors.items()},
        }


@dataclass(frozen=True, slots=True)
class ErrorTerm:
    """One term of the step, or of a bucket's way, and what its error is worth of the measured step."""

    name: str
    measured_s: float
    predicted_s: float
    share_of_step: float


@dataclass(frozen=True, slots=True)
class Validation:
    """A validation holds a prediction beside a measurement.

    Attributes:
        iterations: the steady-state period.
        overhead: the period over that of one process without DDP.
        local_source: where one process's time comes from: `run` (measured with the run) or `prediction`.
        buckets: those that both sides have, in launch order.
        terms: the step's parts and the buckets' launch, skew and wire, the latter also as latency and bandwidth.
        baselines: trivial predictors of the same step, fed with the prediction's times.
        path: what the predicted step waits for; None where the prediction does not tell.
        helps: what more of each resource would save of it, the most first; empty as that.
        first: the construction and the first iterations, by name; empty where either side does not tell.
        other_work: that the machine of the run did meanwhile; None where the run does not tell.
        ratio: the step over one process's, where the run took turns with one process; else None.
    """

    iterations: ComparedQuantity
    overhead: ComparedQuantity
    local_source: str
    buckets: tuple[BucketError, ...]
    terms: tuple[ErrorTerm, ...]
    baselines: Mapping[str, Mapping[str, float | None]]
    path: CriticalPath | None = None
    helps: tuple[Sensitivity, ...] = ()
    first: Mapping[str, ComparedQuantity] = field(default_factory=dict)
    other_work: OtherWork | None = None
    ratio: ComparedRatio | None = None

    def __repr__(self) -> str:
        return f"<Validation: {self.iterations!r}, {len(self.buckets)} buckets>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the step's error, the overhead's, and where most of it is."""
        pairs = {"iteration": self.iterations, "overhead over one process": self.overhead}
        lines = {
            name: f"{format_time(pair.predicted_s)} predicted, {format_time(pair.measured_s)} measured"
            f"{_share(pair.error)}"
            for name, pair in pairs.items()
        }
        largest = self.largest_term
        most = f"{largest.name}{_share(largest.share_of_step)} of the step"
        return summary_card("Validation", {**lines, "errs most": most})

    def tables(self) -> dict[str, ResultTable]:
        """Return what was compared as tables, by titles: each writes itself as text, Markdown and HTML."""
        return _tables(self)

    @property
    def local(self) -> ComparedQuantity:
        """One process's period, without communication; both sides are the prediction's where no run timed it."""
        sides = ((step - over) for step, over in zip(_pair(self.iterations), _pair(self.overhead), strict=True))
        return ComparedQuantity.of(*sides)

    @property
    def errors(self) -> list[float]:
        """The step's error and each bucket's finish error, absolute."""
        step = abs(self.iterations.error or 0.0)
        return [step, *(abs(bucket.errors["finished_s"]) for bucket in self.buckets)]

    @property
    def largest_term(self) -> ErrorTerm:
        """The term whose error is worth most of the step.

        Of the wire's two halves one is named where both err to the same side; a line through few buckets that trades
        one for the other tells nothing.
        """
        halves = [term for term in self.terms if term.name in _HALVES]
        largest = max((term for term in self.terms if term not in halves), key=lambda term: abs(term.share_of_step))
        if largest.name == "wire" and math.prod(term.share_of_step for term in halves) > 0 and len(halves) == 2:
            return max(halves, key=lambda term: abs(term.share_of_step))
        return largest

    def bucket_times(self) -> dict[str, list[tuple[float, float]]]:
        """Return (measured, predicted) seconds of each bucket, by what happens then."""
        named = {"bucket ready": "ready_s", "bucket finished": "finished_s"}
        return {label: [(b.measured[key], b.predicted[key]) for b in self.buckets] for label, key in named.items()}

    def document(self) -> dict[str, object]:
        """Return the `validate` document."""
        return {
            "iterations": asdict(self.iterations),
            "overhead": asdict(self.overhead),
            "local_source": self.local_source,
            "buckets": [bucket.document() for bucket in self.buckets],
            "terms": [asdict(term) for term in self.terms],
            "largest_term": self.largest_term.name,
            "baselines": {name: dict(values) for name, values in self.baselines.items()},
            "mean_abs_error": fmean(self.errors),
            "max_error": max(self.errors),
            **({} if self.ratio is None else {"ratio": self.ratio.document()}),
            **({"first": {name: asdict(pair) for name, pair in self.first.items()}} if self.first else {}),
            **({} if self.path is None else self.path.entries()),
            **({} if self.other_work is None else self.other_work.document()),
            **({"sensitivities": [each.document() for each in self.helps]} if self.helps else {}),
        }


def _pair(quantity: ComparedQuantity) -> tuple[float, float]:
    return quantity.measured_s, quantity.predicted_s


def _share(share: float | None) -> str:
    return "" if share is None else f", {100 * share:+.1f} %"


def _tables(validation: Validation) -> dict[str, ResultTable]:
    """Return the tables by their titles; the first iterations and buckets only where both sides have them."""
    alone = "measured with the run" if validation.local_source == "run" else "as predicted"
    pairs = {"step": validation.iterations, f"overhead over one process ({alone})": validation.overhead}
    tables = {COMPARED: _compared(pairs)}
    if (ratio := validation.ratio) is not None:
        turns = {
            "step / one process": f"{ratio.measured:.3f}",
            "80 % interval": f"{ratio.low:.3f} to {ratio.high:.3f}",
            "predicted": f"{ratio.predicted:.3f}",
            "error": ratio.error,
            "rounds": ratio.rounds,
        }
        tables[TURNS] = table_of("", [turns])
    if validation.first:
        tables[FIRST] = _compared(validation.first)
    trivial = [{"trivial predictor": name.replace("_", " "), **each} for name, each in validation.baselines.items()]
    terms = [{"term": term.name.replace("_", " "), **asdict(term)} for term in validation.terms]
    tables |= {
        TRIVIAL: table_of("", trivial, ("trivial predictor", "predicted_s", "error", "overhead_error")),
        TERMS: table_of("", terms, ("term", "measured_s", "predicted_s", "share_of_step")),
    }
    if validation.buckets:
        errors = [f"{name.removesuffix('_s')}_error" for name in validation.buckets[0].errors]
        buckets = [each.document() for each in validation.buckets]
        tables[BUCKETS] = table_of("", buckets, ("index", "size_bytes", *errors))
    return tables


def _compared(pairs: Mapping[str, ComparedQuantity]) -> ResultTable:
    return table_of("", [{"time": name, **asdict(pair)} for name, pair in pairs.items()])


@dataclass(frozen=True, slots=True)
class Baselines:
    """The mean iteration by trivial predictors, in seconds.

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
    """Return the trivial predictions of the mean iteration.

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
    # Buckets are compared by index, where both sides have the same ones; a scheme's messages by content. Where a
    # scheme's cycles fused other gradients in the run than in the prediction, only messages with the same content are
    # compared.
    apart = len(alike) < max(len(predicted), len(summary.buckets)) and not fused_by_times(measured)
    pairs = _pair_buckets(predicted, summary.buckets) if apart else alike
    _check_same(prediction, pairs, summary)
    timed = measured.provenance.get("local_s")
    known = isinstance(timed, float) and math.isfinite(timed)
    local_s = _float(prediction["local_s"])
    measured_local_s = _float(timed) if known else local_s
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
    """Return the construction and the first iterations that both sides have; a run has as many as it discards."""
    if not isinstance(predicted, Mapping) or not isinstance(measured, Mapping):
        return {}
    compared = {}
    construction = predicted.get("construction")
    if isinstance(construction, Mapping):
        ours, theirs = (_float(each.get("construction_s")) for each in (construction, measured))
        compared["construction"] = ComparedQuantity.of(theirs, ours)
    iterations = measured.get("iterations_s")
    for row, theirs_s in zip(list_mappings(predicted.get("iterations")), iterations or (), strict=False):
        pair = ComparedQuantity.of(_float(theirs_s), _float(row.get("iteration_s")))
        compared[f"iteration {row.get('index')}"] = pair
    return compared


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
    """The parts of a bucket's time between ready and finished: until its launch, until all ranks are there, the
    wire."""

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
    """Return the trivial predictions of the step, from the prediction's own times, not from measured ones."""
    local_s = _float(prediction["local_s"])
    ways = [
        (_float(b["ready_s"]), _Way.of(b).wire_s, _float(b["finished_s"])) for b in list_mappings(prediction["buckets"])
    ]
    trivial = baselines(
        ((ready, wire) for ready, wire, _ in ways),
        local_s=local_s,
        optimizer_s=_float(prediction["optimizer_s"]),
        under_s=_float(prediction["backward_compute_s"]),
        communication_s=length(union((finished - wire, finished) for _, wire, finished in ways)),
        sync_every=sync_every,
    )
    predictors = {
        "one_process": trivial.one_process_s,
        "one_process_plus_communication": trivial.sum_s,
        "max_of_backward_and_communication": trivial.max_s,
        "in_order_pipeline": trivial.in_order_pipeline_s,
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
