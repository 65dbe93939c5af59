"""Results as Markdown and as text: validations side by side, error statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddpsim.metrics import quantile
from ddpsim.validate import Validation


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; None is a dash."""
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(" --- " for _ in header) + "|"]
    lines += ["| " + " | ".join("-" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def signed_percent(error: float | None) -> str:
    """Return a signed error for a cell."""
    return "-" if error is None else f"{error * 100:+.1f} %"


HEADER = (
    "run", "measured ms", "predicted ms", "step error", "overhead measured ms", "predicted ms", "overhead error",
    "one process", "+ communication",
)  # fmt: skip


def validation_row(label: str, validation: Validation) -> tuple[str, ...]:
    """Return the cells of one run under `HEADER`; the last two are the trivial predictors' step errors."""
    step, overhead, baselines = validation.iterations, validation.overhead, validation.baselines
    return (
        label,
        f"{step.measured_s * 1e3:.1f}",
        f"{step.predicted_s * 1e3:.1f}",
        signed_percent(step.error),
        f"{overhead.measured_s * 1e3:.1f}",
        f"{overhead.predicted_s * 1e3:.1f}",
        signed_percent(overhead.error),
        signed_percent(baselines["one_process"]["error"]),
        signed_percent(baselines["one_process_plus_communication"]["error"]),
    )


@dataclass(frozen=True, slots=True)
class ErrorStatistics:
    """Absolute errors over runs: how many, their median and 95th percentile."""

    runs: int
    median: float | None
    p95: float | None

    @classmethod
    def of(cls, errors: Iterable[float | None]) -> ErrorStatistics:
        """Return the statistics of those that are known."""
        known = [abs(error) for error in errors if error is not None]
        return cls(len(known), median(known) if known else None, quantile(known, 0.95) if known else None)


def statistics(validations: Mapping[str, Validation]) -> dict[str, ErrorStatistics]:
    """Return error statistics of the step and the overhead, ours and each trivial predictor's."""
    values = list(validations.values())
    found = {
        "step": ErrorStatistics.of(v.iterations.error for v in values),
        "overhead": ErrorStatistics.of(v.overhead.error for v in values),
        "bucket finish": ErrorStatistics.of(b.errors["finished_s"] for v in values for b in v.buckets),
    }
    for name in values[0].baselines if values else ():
        found[f"step, {name}"] = ErrorStatistics.of(v.baselines[name]["error"] for v in values)
        found[f"overhead, {name}"] = ErrorStatistics.of(v.baselines[name]["overhead_error"] for v in values)
    return found


def statistics_table(validations: Mapping[str, Validation]) -> str:
    """Return the statistics as Markdown, in percent."""

    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value * 100:.1f} %"

    rows = [(name, s.runs, cell(s.median), cell(s.p95)) for name, s in statistics(validations).items()]
    return markdown_table(("absolute error", "runs", "median", "95th percentile"), rows)
