"""`python -m studies.pictures`: the pictures that the README opens with, and the numbers that are drawn."""

from __future__ import annotations

import sys

from studies.pictures import machines, step
from studies.study import Page, Study


def _text() -> str:
    lines = ["# Pictures of the README", "", "## A step, predicted before it ran and measured", ""]
    lines += [f"`traces/lab`, `{step.RUN}`, rank 0; measured is the step of median length.", ""]
    lines += ["| | predicted, ms | measured, ms | error |", "|---|--:|--:|--:|"]
    lines += [
        f"| {name} | {ours:.1f} | {real:.1f} | {100 * (ours / real - 1):+.1f} % |" for name, ours, real in step.rows()
    ]
    lines += ["", "## BERT-large across machines", "", "Step in ms, and its 80 % band.", ""]
    lines += ["| machine | " + " | ".join(f"{gpus} GPUs" for gpus in machines.GPUS) + " |"]
    lines += ["|---|" + "--:|" * len(machines.GPUS)]
    for name, by_gpus in machines.predictions().items():
        cells = (f"{it.iteration_s * 1e3:.0f} ({it.low_s * 1e3:.0f}-{it.high_s * 1e3:.0f})" for it in by_gpus.values())
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


STUDY = Study(
    "pictures",
    (Page("pictures.md", _text, {"step.png": step.draw, "machines.png": machines.draw}),),
)

if __name__ == "__main__":
    sys.exit(STUDY.main())
