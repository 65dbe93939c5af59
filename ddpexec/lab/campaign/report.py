"""A campaign's results as Markdown: first the measures with their targets, then one row for each configuration.

`format_by_scheme` says of schemes how well the step of each is predicted, and whether the best is predicted to be best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from ddpexec.lab.campaign.results import Result, group_results
from ddpsim.common.tables import Record, ResultTable, table_of
from ddpsim.common.tables.cells import ms
from ddpsim.common.units import format_count

ALIKE = 0.01
"""Of a step; schemes that differ by less are as good as each other."""


@dataclass(frozen=True, slots=True)
class SchemeErrors:
    """Errors of the predicted step over the configurations of one scheme, as shares of the measured step."""

    scheme: str
    count: int
    median: float
    p95: float
    signed: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """The schemes of one family, in predicted and in measured order.

    Attributes:
        predicted, measured: the scheme of the shortest step on either side.
        regret: by how much the predicted best is measured to be slower than the measured best.
        pairs: of schemes whose measured steps differ by more than `ALIKE`.
        right: of these, that are predicted in the measured order.
    """

    family: str
    predicted: str
    measured: str
    regret: float
    pairs: int
    right: int


def errors_by_scheme(results: Sequence[Result]) -> list[SchemeErrors]:
    """Return the errors of each scheme, in the order in which schemes come first."""
    return [_errors(scheme, group) for scheme, group in group_results(results, "scheme").items()]


def rankings(results: Sequence[Result]) -> list[Ranking]:
    """Return a ranking of each family that ran more than one scheme."""
    families = group_results(results, "family")
    return [_rank(family, group) for family, group in families.items() if len(group) > 1]


def _errors(scheme: str, group: Sequence[Result]) -> SchemeErrors:
    signed = [result.error for result in group]
    absolute = list(map(abs, signed))
    p95 = float(np.percentile(absolute, 95))
    return SchemeErrors(scheme, len(group), median(absolute), p95, median(signed), min(signed), max(signed))


def _rank(family: str, group: Sequence[Result]) -> Ranking:
    foretold = min(group, key=lambda result: result.predicted_s)
    best = min(group, key=lambda result: result.step_s)
    apart = [
        (one, other)
        for one, other in combinations(sorted(group, key=lambda result: result.step_s), 2)
        if other.step_s > one.step_s * (1 + ALIKE)
    ]
    right = sum(one.predicted_s < other.predicted_s for one, other in apart)
    regret = foretold.step_s / best.step_s - 1
    return Ranking(family, foretold.scheme, best.scheme, regret, len(apart), right)


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a campaign's summary, and within which limits it is wanted, None where it only informs."""

    label: str
    key: str
    most: float | None = None
    least: float | None = None

    @property
    def reach(self) -> str:
        """The limits in words."""
        limits = [f"{limit * 100:g}" for limit in (self.least, self.most) if limit is not None]
        if len(limits) == 2:
            return f"{' to '.join(limits)} %"
        return f"{'<=' if self.least is None else '>='} {limits[0]} %" if limits else ""

    def is_met(self, value: float | None) -> bool | None:
        """Return whether `value` is within the limits; None where there is no value or no limit."""
        if value is None or not self.reach:
            return None
        return (self.most is None or value <= self.most) and (self.least is None or value >= self.least)

    def cell(self, value: float | None) -> str:
        """Return the value as a table's cell, `missed` beside it where it is out of its limits."""
        return percent(value) + (", missed" if self.is_met(value) is False else "")


MEASURES = (
    Measure("absolute error of the iteration, median", "step_error_median", 0.02),
    Measure("absolute error of the iteration, 95th percentile", "step_error_p95", 0.05),
    Measure("signed error of the iteration, median", "step_error_signed_median"),
    Measure("absolute error of the overhead over one process, median", "overhead_error_median", 0.05),
    Measure("the same, best trivial predictor", "best_baseline_overhead_error_median"),
    Measure("ours over the best trivial predictor's", "overhead_error_over_best_baseline", 0.5),
    Measure("bucket finish times, median absolute error as a share of the step", "bucket_finish_error_median", 0.02),
    Measure("regret of the predicted best cap, mean", "regret_mean", 0.01),
    Measure("regret of the predicted best cap, worst", "regret_worst", 0.03),
    Measure("regret of torch's default, mean", "regret_of_default_mean"),
    Measure("regret of the best single cap, mean over the groups that ran it", "regret_of_best_single_cap_mean"),
    Measure("regret of the predicted best cap, mean over the same groups", "regret_mean_where_best_single_cap_ran"),
    Measure("share of (default - best) captured, where that is more than 5 %", "captured_share_mean", least=0.9),
    Measure("the same, always torch's default", "captured_share_of_default_mean"),
    Measure("the same, best single cap", "captured_share_of_best_single_cap_mean"),
    Measure("80 % bands, coverage", "band_coverage", 0.9, 0.75),
    Measure("80 % bands, median width", "band_width_median"),
    Measure("noise of repeated runs, median half range", "noise_median"),
)


def markdown(name: str, summary: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return the page."""
    lines = [
        f"# Campaign {name}",
        "",
        f"{format_count(summary['configurations'], 'configuration')}. Every prediction was written before the first "
        "run of its configuration; its constants come from microbenchmarks of the same network, apart from the runs.",
        "",
        *format_measures({"value": summary}),
        "",
        format_compared(summary),
        "",
        *trivial({"error of the overhead, median": summary}),
        "",
        *format_by_scheme(results),
        *([f"{format_one_process(results)}.", ""] if results else []),
        *_busy(results),
        table_of("campaign", _records(results)).markdown(),
    ]
    return "\n".join(lines) + "\n"


def _busy(results: Sequence[Result]) -> Iterator[str]:
    """Yield a line on the configurations whose machine did other work meanwhile; nothing without any."""
    if names := [result.name for result in results if result.notes()]:
        yield f"Measured while the machine was busy with other work, and slower for it: {', '.join(names)}."
        yield ""


def format_measures(columns: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of measures, a column a summary."""
    rows = ((m.label, *(m.cell(summary[m.key]) for summary in columns.values()), m.reach) for m in MEASURES)
    header = ("measure", *columns, "reach")
    yield from ResultTable(header, tuple(rows), frozenset({0, len(columns) + 1})).markdown().splitlines()


def format_compared(summary: Mapping[str, Any]) -> str:
    """Return in how many groups caps were compared."""
    single = summary["best_single_cap"]
    best = "no cap but the default was run in half of them"
    if single is not None:
        best = f"the best single cap is {single}, run in {summary['best_single_cap_groups']} of them"
    return (
        f"Caps were compared in {summary['cap_groups']} groups, of which {summary['groups_worth_tuning']} gain more "
        f"than 5 % over torch's default; {best}."
    )


def trivial(columns: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table of trivial predictors' errors of the overhead, a column a summary."""
    key = "baseline_overhead_error_median"
    names = sorted({name for summary in columns.values() for name in summary[key]})
    rows = ((name.replace("_", " "), *(percent(each[key][name]) for each in columns.values())) for name in names)
    yield from ResultTable(("trivial predictor", *columns), tuple(rows)).markdown().splitlines()


def format_by_scheme(results: Sequence[Result]) -> Iterator[str]:
    """Yield how well each scheme is predicted, and which is the best of each family; nothing where there is but one."""
    errors = errors_by_scheme(results)
    if len(errors) < 2:
        return
    schemes = [
        {
            "scheme": each.scheme,
            "configurations": each.count,
            "median_error": each.median,
            "p95_error": each.p95,
            "signed_error": each.signed,
            "signed_error_low": each.least,
            "signed_error_high": each.most,
        }
        for each in errors
    ]
    yield table_of("campaign: schemes", schemes).markdown()
    yield ""
    families = [
        {
            "family": each.family,
            "predicted best": each.predicted,
            "measured best": each.measured,
            "regret_of_predicted_best": each.regret,
            "pairs_in_order": f"{each.right} of {each.pairs}",
        }
        for each in rankings(results)
    ]
    yield table_of("campaign: families", families).markdown()
    yield ""


def format_one_process(results: Sequence[Result]) -> str:
    """Return where the times of one process, over which a step's overhead is, come from."""
    measured = "measured, by steps without communication at the end of the runs"
    computed = "one rank without DDP at its workload's pace, computed, not run"
    timed = sum(result.local_source == "measured" for result in results)
    if timed in (0, len(results)):
        return f"One process: {measured if timed else computed}"
    return f"One process: {measured}; of {len(results) - timed} of {len(results)}, marked c: {computed}"


def mark_one_process(result: Result, results: Sequence[Result]) -> str:
    """Return what stands behind the time of one process: ` c` where others were measured and this one was not."""
    mixed = any(other.local_source == "measured" for other in results)
    return " c" if mixed and result.local_source != "measured" else ""


def _records(results: Sequence[Result]) -> list[Record]:
    return [
        {
            **each.document(),
            "configuration": each.name,
            "one_process": f"{ms(each.local_s)}{mark_one_process(each, results)}",
            "measured_s": each.step_s,
            "term": each.largest_term,
        }
        for each in results
    ]


def percent(value: float | None, *, signed: bool = False) -> str:
    """Return a share as a cell; `-` where there is none."""
    return "-" if value is None else f"{value * 100:{'+' if signed else ''}.2f} %"
