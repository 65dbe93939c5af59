"""What a validation finds: a prediction beside a measurement, in the step, in every bucket and term by term.

Errors are predicted / measured - 1, signed; a bucket's are (predicted - measured) / measured step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median

from ddpsim.common.markup import summary_card
from ddpsim.common.other_work import OtherWork
from ddpsim.common.tables import ResultTable, table_of
from ddpsim.common.units import format_time
from ddpsim.prediction.path import CriticalPath, Sensitivity

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
        told = {
            name: f"{format_time(pair.predicted_s)} predicted, {format_time(pair.measured_s)} measured"
            f"{_share(pair.error)}"
            for name, pair in pairs.items()
        }
        largest = self.largest_term
        most = f"{largest.name}{_share(largest.share_of_step)} of the step"
        return summary_card("Validation", {**told, "errs most": most})

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


def _tables(found: Validation) -> dict[str, ResultTable]:
    """Return the tables by their titles; the first iterations and buckets only where both sides have them."""
    alone = "measured with the run" if found.local_source == "run" else "as predicted"
    pairs = {"step": found.iterations, f"overhead over one process ({alone})": found.overhead}
    tables = {COMPARED: _compared(pairs)}
    if (ratio := found.ratio) is not None:
        turns = {
            "step / one process": f"{ratio.measured:.3f}",
            "80 % interval": f"{ratio.low:.3f} to {ratio.high:.3f}",
            "predicted": f"{ratio.predicted:.3f}",
            "error": ratio.error,
            "rounds": ratio.rounds,
        }
        tables[TURNS] = table_of("", [turns])
    if found.first:
        tables[FIRST] = _compared(found.first)
    trivial = [{"trivial predictor": name.replace("_", " "), **each} for name, each in found.baselines.items()]
    terms = [{"term": term.name.replace("_", " "), **asdict(term)} for term in found.terms]
    tables |= {
        TRIVIAL: table_of("", trivial, ("trivial predictor", "predicted_s", "error", "overhead_error")),
        TERMS: table_of("", terms, ("term", "measured_s", "predicted_s", "share_of_step")),
    }
    if found.buckets:
        errors = [f"{name.removesuffix('_s')}_error" for name in found.buckets[0].errors]
        buckets = [each.document() for each in found.buckets]
        tables[BUCKETS] = table_of("", buckets, ("index", "size_bytes", *errors))
    return tables


def _compared(pairs: Mapping[str, ComparedQuantity]) -> ResultTable:
    return table_of("", [{"time": name, **asdict(pair)} for name, pair in pairs.items()])
