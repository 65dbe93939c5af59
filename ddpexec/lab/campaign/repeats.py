"""The runs of one configuration as one measurement: every time is their mean, so that parts still make up the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median

from ddpsim.planning.validation_result import BucketError, ComparedQuantity, ComparedRatio, ErrorTerm, Validation


def average_runs(runs: Sequence[Validation]) -> Validation:
    """Return one prediction held against the mean of several runs, a validation each.

    Terms that not every run has are left out. One process's time is the runs' own where each of them has it, else the
    prediction's.
    """
    first = runs[0]
    step_s = fmean(run.iterations.measured_s for run in runs)
    timed = all(run.local_source == "run" for run in runs)
    local_s = first.iterations.predicted_s - first.overhead.predicted_s
    overhead_s = fmean(
        run.overhead.measured_s if timed or run.local_source != "run" else run.iterations.measured_s - local_s
        for run in runs
    )
    buckets = zip(*(run.buckets for run in runs), strict=False)
    return Validation(
        iterations=ComparedQuantity.of(step_s, first.iterations.predicted_s),
        overhead=ComparedQuantity.of(overhead_s, first.overhead.predicted_s),
        local_source="run" if timed else "prediction",
        buckets=tuple(_bucket(each, step_s) for each in buckets),
        terms=tuple(_terms(runs, step_s)),
        baselines={
            name: {
                "predicted_s": seconds,
                "error": seconds / step_s - 1,
                "overhead_error": (seconds - local_s) / overhead_s - 1 if overhead_s > 0 else None,
            }
            for name, said in first.baselines.items()
            if (seconds := said["predicted_s"]) is not None
        },
        ratio=_pool([run.ratio for run in runs]),
    )


def mean_of(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each entry."""
    return {name: fmean(value[name] for value in values) for name in values[0]}


def _pool(ratios: Sequence[ComparedRatio | None]) -> ComparedRatio | None:
    """Return the ratio over all runs, each as one round of it; None where one of them took no turns."""
    known = [ratio for ratio in ratios if ratio is not None]
    if len(known) < len(ratios):
        return None
    return (
        known[0]
        if len(known) == 1
        else ComparedRatio.of([r.measured for r in known], known[0].predicted, median(r.drift for r in known))
    )


def _bucket(runs: Sequence[BucketError], step_s: float) -> BucketError:
    first, measured = runs[0], mean_of([run.measured for run in runs])
    errors = {name: (first.predicted[name] - measured[name]) / step_s for name in measured}
    return BucketError(first.index, first.size_bytes, measured, first.predicted, errors)


def _terms(runs: Sequence[Validation], step_s: float) -> Iterator[ErrorTerm]:
    by_name = [{term.name: term for term in run.terms} for run in runs]
    for name in by_name[0]:
        if all(name in terms for terms in by_name):
            measured_s = fmean(terms[name].measured_s for terms in by_name)
            predicted_s = fmean(terms[name].predicted_s for terms in by_name)
            yield ErrorTerm(name, measured_s, predicted_s, (predicted_s - measured_s) / step_s)
