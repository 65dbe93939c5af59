"""A campaign's results as Markdown: the measures beside what is to be reached, then one row a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddpexec.campaign.results import Result

_MEASURES = (
    ("absolute error of the iteration, median", "step_error_median", "<= 2 %"),
    ("absolute error of the iteration, 95th percentile", "step_error_p95", "<= 5 %"),
    ("signed error of the iteration, median", "step_error_signed_median", ""),
    ("absolute error of the overhead over one process, median", "overhead_error_median", "<= 5 %"),
    ("the same, best trivial predictor", "best_baseline_overhead_error_median", "at least twice ours"),
    ("bucket finish times, median absolute error as a share of the step", "bucket_finish_error_median", "<= 2 %"),
    ("regret of the predicted best cap, mean", "regret_mean", "<= 1 %"),
    ("regret of the predicted best cap, worst", "regret_worst", "<= 3 %"),
    ("regret of torch's default, mean", "regret_of_default_mean", ""),
    ("regret of the best single cap, mean", "regret_of_best_single_cap_mean", ""),
    ("share of (default - best) captured", "captured_share_mean", ">= 90 %"),
    ("80 % bands, coverage", "band_coverage", "75 to 90 %"),
    ("80 % bands, median width", "band_width_median", ""),
    ("noise of repeated runs, median half range", "noise_median", ""),
)


def markdown(name: str, summary: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return the page."""
    lines = [
        f"# Campaign {name}",
        "",
        f"{summary['configurations']} configurations. Every prediction was written before the first run of its "
        "configuration; its constants come from microbenchmarks of the same network, apart from the runs.",
        "",
        "| measure | value | reach |",
        "|---|--:|---|",
        *(f"| {label} | {_percent(summary[key])} | {reach} |" for label, key, reach in _MEASURES),
        "",
        f"Caps were compared in {summary['cap_groups']} groups, of which {summary['groups_worth_tuning']} spread by "
        f"more than 5 %; the best single cap is {summary['best_single_cap']}.",
        "",
        "| trivial predictor | error of the overhead, median |",
        "|---|--:|",
        *(f"| {each.replace('_', ' ')} | {_percent(error)} |" for each, error in _trivial(summary)),
        "",
        "| configuration | one process, ms | measured, ms | noise | predicted, ms | error | overhead error | term |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
        *map(_row, results),
    ]
    return "\n".join(lines) + "\n"


def _row(result: Result) -> str:
    cells = (
        result.name,
        f"{result.local_s * 1e3:.1f}",
        f"{result.step_s * 1e3:.1f}",
        _percent(result.noise),
        f"{result.predicted_s * 1e3:.1f}",
        _percent(result.error, signed=True),
        _percent(result.overhead_error, signed=True),
        result.largest_term,
    )
    return f"| {' | '.join(cells)} |"


def _trivial(summary: Mapping[str, Any]) -> list[tuple[str, float | None]]:
    return list(summary["baseline_overhead_error_median"].items())


def _percent(value: float | None, *, signed: bool = False) -> str:
    return "-" if value is None else f"{value * 100:{'+' if signed else ''}.2f} %"
