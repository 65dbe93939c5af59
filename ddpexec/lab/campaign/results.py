"""What a campaign knows of one configuration when it has run, and what all of them show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from ddpsim.common.other_work import OtherWork

SPREAD_WORTH_TUNING = 0.05
"""A choice of cap matters where the default is this much slower than the best."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One configuration: what was predicted before the run, and what was measured in it.

    Attributes:
        group: configurations that differ in bucket caps alone share it.
        caps: the cap options, `default` for torch's.
        step_s: mean of `repeats_s`, the measured steady-state periods.
        low_s, high_s: the prediction's band.
        local_s: one process's iteration: the median of steps without communication in the runs, or as predicted.
        predicted_local_s: as predicted.
        local_source: which of the two `local_s` is, `measured` or `predicted`; of results kept before the runs timed
            it, the latter.
        bucket_errors: of each bucket's finish, as a share of the step, signed.
        baselines_s: what trivial predictors say of the step.
        largest_term: the term of the step whose error is worth most.
        scheme: what was sent and when: `priority`, `ddp, no overlap`.
        family: configurations that differ in their scheme alone share it.
        other_work_processors: how many processors of the machine were busy with other work in the busiest of the runs;
            None where none tells.
        processors: of that machine.
        ratio, ratio_error: the step over one process's where runs took turns with one, and the prediction's error of
            it; else None.
    """

    name: str
    group: str
    caps: str
    world_size: int
    wire_over_backward: float | None
    predicted_s: float
    low_s: float
    high_s: float
    step_s: float
    repeats_s: tuple[float, ...]
    local_s: float
    predicted_local_s: float
    bucket_errors: tuple[float, ...]
    baselines_s: Mapping[str, float]
    largest_term: str
    local_source: str = "predicted"
    scheme: str = "ddp"
    family: str = ""
    other_work_processors: float | None = None
    processors: int | None = None
    ratio: float | None = None
    ratio_error: float | None = None

    @property
    def error(self) -> float:
        """Predicted over measured step, minus 1."""
        return self.predicted_s / self.step_s - 1

    @property
    def noise(self) -> float | None:
        """Half the range of the repeats over their mean; None for a single run."""
        if len(self.repeats_s) < 2:
            return None
        return (max(self.repeats_s) - min(self.repeats_s)) / 2 / self.step_s

    @property
    def overhead_s(self) -> float:
        """Measured step over one process's."""
        return self.step_s - self.local_s

    @property
    def overhead_error(self) -> float | None:
        """Predicted over measured overhead, minus 1; None where none was measured."""
        if self.overhead_s <= 0:
            return None
        return (self.predicted_s - self.predicted_local_s) / self.overhead_s - 1

    def notes(self) -> list[str]:
        """Return what to know of how it was measured: that the machine was busy."""
        other = OtherWork.read(asdict(self))
        return [] if other is None else other.notes()

    def baseline_error(self, name: str) -> float | None:
        """Return the error of a trivial predictor on the overhead."""
        return (self.baselines_s[name] - self.local_s) / self.overhead_s - 1 if self.overhead_s > 0 else None

    def document(self) -> dict[str, Any]:
        """Return the result as JSON values, its derived figures included."""
        return {
            **asdict(self),
            "error": self.error,
            "overhead_error": self.overhead_error,
            "noise": self.noise,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Result:
        """Return the result whose `document()` this is."""
        later = {name for name, each in cls.__dataclass_fields__.items() if each.default is not MISSING}
        own = {key: document[key] for key in cls.__dataclass_fields__ if key in document or key not in later}
        return cls(**own | {"repeats_s": tuple(own["repeats_s"]), "bucket_errors": tuple(own["bucket_errors"])})


def summarise_results(results: Sequence[Result]) -> dict[str, Any]:
    """Return the measures of a campaign; each is None where no configuration has it."""
    overhead = _absolute(result.overhead_error for result in results)
    names = sorted({name for result in results for name in result.baselines_s})
    trivial = {name: _median(_absolute(r.baseline_error(name) for r in results)) for name in names}
    known = [error for error in trivial.values() if error is not None]
    finishes = [abs(error) for result in results for error in result.bucket_errors]
    widths = [(result.high_s - result.low_s) / result.predicted_s for result in results]
    inside = [result.low_s <= result.step_s <= result.high_s for result in results]
    return {
        "configurations": len(results),
        "local_measured": sum(result.local_source == "measured" for result in results),
        "step_error_median": _median(_absolute(result.error for result in results)),
        "step_error_p95": _percentile(_absolute(result.error for result in results), 95),
        "step_error_signed_median": _median([result.error for result in results]),
        "overhead_error_median": _median(overhead),
        "baseline_overhead_error_median": trivial,
        "best_baseline_overhead_error_median": min(known, default=None),
        "overhead_error_over_best_baseline": _divide(_median(overhead), min(known, default=None)),
        "bucket_finish_error_median": _median(finishes),
        "noise_median": _median([result.noise for result in results if result.noise is not None]),
        "band_coverage": fmean(inside) if inside else None,
        "band_width_median": _median(widths),
        **_choices(results),
    }


def _choices(results: Sequence[Result]) -> dict[str, Any]:
    """Return what following the prediction's best cap costs and gains, where several caps were run."""
    groups = [group for group in group_results(results, "group").values() if len(group) > 1]
    regrets = _regrets(groups, None)
    shares = [_measure_captured(group, _measure_chosen_s(group)) for group in groups]
    captured = [share for share in shares if share is not None]
    cap, having = _best_single_cap(groups)
    by_cap = [
        share for group in having if cap and (share := _measure_captured(group, _step_of(group, cap))) is not None
    ]
    return {
        "cap_groups": len(groups),
        "regret_mean": _mean(regrets),
        "regret_worst": max(regrets, default=None),
        "regret_of_default_mean": _mean(_regrets(groups, "default")),
        "best_single_cap": cap,
        "best_single_cap_groups": len(having),
        "regret_of_best_single_cap_mean": _mean(_regrets(having, cap)) if cap else None,
        "regret_mean_where_best_single_cap_ran": _mean(_regrets(having, None)),
        "groups_worth_tuning": len(captured),
        "captured_share_mean": _mean(captured),
        "captured_share_of_best_single_cap_mean": _mean(by_cap),
        "captured_share_of_default_mean": 0.0 if captured else None,
    }


def _measure_captured(group: Sequence[Result], step_s: float | None) -> float | None:
    """Return the share of default - best that a choice with `step_s` gains; None where there is little to gain."""
    best, default = min(result.step_s for result in group), _step_of(group, "default")
    if default is None or step_s is None or default / best - 1 <= SPREAD_WORTH_TUNING:
        return None
    return (default - step_s) / (default - best)


def _step_of(group: Sequence[Result], caps: str) -> float | None:
    return next((result.step_s for result in group if result.caps == caps), None)


def _best_single_cap(groups: Sequence[Sequence[Result]]) -> tuple[str | None, list[Sequence[Result]]]:
    """Return the one cap that hindsight likes best, of those that at least half of the groups ran, and these groups."""
    ran = {caps: [g for g in groups if _step_of(g, caps) is not None] for g in groups for caps in {r.caps for r in g}}
    common = {caps: having for caps, having in ran.items() if 2 * len(having) >= len(groups) and caps != "default"}
    best = min(sorted(common), key=lambda caps: fmean(_regrets(common[caps], caps)), default=None)
    return best, [] if best is None else common[best]


def _measure_chosen_s(group: Sequence[Result]) -> float:
    """Return the measured step of the cap with the best predicted time."""
    return min(group, key=lambda result: result.predicted_s).step_s


def _regrets(groups: Sequence[Sequence[Result]], caps: str | None) -> list[float]:
    """Return by how much `caps` is slower than the best cap of each group that ran it; None is the predicted best."""
    taken = [(group, _measure_chosen_s(group) if caps is None else _step_of(group, caps)) for group in groups]
    return [step_s / min(result.step_s for result in group) - 1 for group, step_s in taken if step_s is not None]


def group_results(results: Sequence[Result], key: str) -> dict[str, list[Result]]:
    """Return the results that have the same value of `key`, in the order in which values come first."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(getattr(result, key), []).append(result)
    return groups


def _divide(error: float | None, other: float | None) -> float | None:
    return None if error is None or not other else error / other


def _absolute(values: Iterable[float | None]) -> list[float]:
    return [abs(value) for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None
