"""Validations side by side, as rows of a table."""

from __future__ import annotations

from ddpsim.validation.result import Validation


def format_signed_percent(error: float | None) -> str:
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
        format_signed_percent(step.error),
        f"{overhead.measured_s * 1e3:.1f}",
        f"{overhead.predicted_s * 1e3:.1f}",
        format_signed_percent(overhead.error),
        format_signed_percent(baselines["one_process"]["error"]),
        format_signed_percent(baselines["one_process_plus_communication"]["error"]),
    )
