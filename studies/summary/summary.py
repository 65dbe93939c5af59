"""The accuracy page of the documentation: every system's errors, of what the studies' committed pages hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from studies.study import HERE, tables

Row = Mapping[str, str]

FAR = 35.0
"""Percent of error beyond which a table's allreduces count among what not to believe."""
COVERED = 75.0
"""Percent of rows inside bands of 80 % below which a family's bands are named there."""

_HEAD = """# How accurate predictions are, by system

Written by `make summary` from the pages of the studies, which hold every row, its source and how it came about. Errors
are predicted / measured - 1; no figure is pooled over systems. What is known of a system decides what to expect.
"""


def table(page: str, title: str, column: str) -> Sequence[Row]:
    """Return the rows of the first table of a study's page that stands under `title` and has `column`."""
    found = tables((HERE / page).read_text(encoding="utf-8"))
    return next(each["rows"] for each in found if each["title"] == title and column in each["rows"][0])


def percent(cell: str) -> float:
    """Return the number before the percent sign."""
    return float(cell.partition("%")[0].strip())


def allreduces() -> list[tuple[str, str, float]]:
    """Return each measured table with its rows and the mean absolute error in percent, least first."""
    title = "No calibration, 1 MiB and more"
    found = [each["rows"] for each in tables((HERE / "accuracy/accuracy.md").read_text()) if each["title"] == title]
    rows: list[Row] = [row for part in found for row in part if not row["system"].startswith("**")]
    return sorted(((row["system"], row["rows"], percent(row["ddpsim"])) for row in rows), key=lambda each: each[2])


def text() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *_believe(), *_steps(), *_estimates(), *_lab(), *_families(), *_allreduces(), *_paper()])


def _believe() -> Iterator[str]:
    steps = table("published/gpu-steps.md", "Published steps of real GPUs, predicted", "step, median error")
    caps = table("published/gpu-steps.md", "Caps", "pairs in order")
    found = allreduces()
    far = sum(error > FAR for _, _, error in found)
    families = table("bands/bands.md", "Allreduce times that nobody calibrated", "family")
    poor = [f"{row['family']} ({row['inside']} inside)" for row in families if percent(row["inside"]) < COVERED]
    overheads = [percent(row["overhead, median error"]) for row in steps]
    yield "## What to believe\n"
    yield (
        f"- **Which bucket cap is faster**: pairs in order "
        f"{_listed(row['pairs in order'] for row in caps)} on {len(caps)} systems."
    )
    errors = [percent(row["step, median error"]) for row in steps]
    yield (
        "- **A step, given the one-GPU step, and allreduce times where a page has them**: off by "
        f"{min(errors):.1f} to {max(errors):.1f} % in the median of {len(errors)} systems."
    )
    middle = found[len(found) // 2][2]
    yield f"- **An allreduce that nobody measured**, of 1 MiB and more: {middle:.0f} % off in the median of"
    yield f"  {len(found)} tables.\n"
    yield "## What not to believe\n"
    yield f"- **The overhead alone** where little is measured: off by {min(overheads):.0f} to {max(overheads):.0f} % in"
    yield "  the median."
    yield f"- **An allreduce on a system like one of the {far} that are more than {FAR:.0f} % off** without a"
    yield "  calibration ([below](#allreduces-without-a-calibration-1-mib-and-more)): measure and calibrate there."
    yield f"- **Bands that hold less than {COVERED:.0f} % of rows**: {', '.join(poor)}."
    yield "- **Convergence**: no prediction says how a scheme trains.\n"


def _steps() -> Iterator[str]:
    rows = table("published/gpu-steps.md", "Published steps of real GPUs, predicted", "step, median error")
    names = ("system", "rows", "step, median error", "overhead, median error", "in the band")
    yield "## Published steps of real GPUs\n"
    yield from _table(names, [[row[name] for name in names] for row in rows])
    yield "Every row: [published steps](../../studies/published/gpu-steps.md), [PyTorch's"
    yield "table](../../studies/published/published.md).\n"


def _estimates() -> Iterator[str]:
    rows = table("estimates/estimates.md", "Second half: what to expect", "steps")
    yield "## One-GPU steps that nobody measured\n"
    yield from _table(
        ("what is known", "steps", "median error", "90th percentile"), [list(row.values())[:4] for row in rows]
    )
    yield "Every row: [estimates](../../studies/estimates/estimates.md); memory beside [published"
    yield "peaks](../../studies/published/memory.md).\n"


def _lab() -> Iterator[str]:
    rows = table("validation/validation.md", "Measures", "measure")
    yield "## The lab: real DDP over gloo, predicted before it ran\n"
    yield from _table(
        ("measure", "predicted before the runs", "reach"),
        [[row["measure"], row["predicted before the runs"], row["reach"]] for row in rows if row["reach"]],
    )
    yield "Every run: [validation](../../studies/validation/validation.md),"
    yield "[schemes](../../studies/schemes/schemes-measured.md).\n"


def _families() -> Iterator[str]:
    rows = table("bands/bands.md", "Allreduce times that nobody calibrated", "family")
    yield "## Bands of 80 % on allreduces of other sites\n"
    yield from _table(tuple(rows[0]), [list(row.values()) for row in rows])
    yield "[How often bands hold](../../studies/bands/bands.md).\n"


def _allreduces() -> Iterator[str]:
    yield "## Allreduces without a calibration, 1 MiB and more\n"
    yield "Measured tables by their mean absolute error, which stands in brackets in percent. Each is predicted with"
    yield "constants fitted without its site.\n"
    found = allreduces()
    ends = [0.0, *(end for end in _ENDS if end < found[-1][2]), float("inf")]
    rows = [(low, high, [each for each in found if low <= each[2] < high]) for low, high in pairwise(ends)]
    yield from _table(("error", "tables"), [[_range(*ends), _listed(map(_named, each))] for *ends, each in rows])
    yield "Rows of each, NCCL's own model beside it, and calibrated: [accuracy](../../studies/accuracy/accuracy.md).\n"


_ENDS = (10.0, 20.0, 30.0, 40.0)
"""Percent of error at which one row of measured tables ends and the next begins."""


def _range(low: float, high: float) -> str:
    if high == float("inf"):
        return f"over {low:.0f} %"
    return f"{low:.0f} to {high:.0f} %" if low else f"under {high:.0f} %"


def _named(table: tuple[str, str, float]) -> str:
    return f"{table[0]} ({table[2]:.1f})"


def _paper() -> Iterator[str]:
    yield "## The paper's claims\n"
    for name in ("paper", "paper-schemes"):
        told = (HERE / "paper" / f"{name}.md").read_text().partition("## What holds\n\n")[2].partition("\n")[0]
        yield f"- [{name}](../../studies/paper/{name}.md): {told}"
    yield ""


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield f"|---|{'--:|' * (len(names) - 1)}" if len(names) > 2 else "|---|---|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "reference"
