"""`python -m ddpexec estimate`: workloads from operator counts, for GPUs that are not at hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from ddpsim.errors import InputError


def estimate(
    output: Annotated[Path, typer.Option("-o", "--output", help="Workload file to write; with --all a folder.")],
    model: Annotated[Optional[str], typer.Option(help="A shipped model: resnet50, gpt2-small-s64, ...")] = None,  # noqa: UP045
    step: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="package.module:function that returns (module, step), as capture takes it."),
    ] = None,
    gpu: Annotated[str, typer.Option(help="V100, A100, H100, B200, ...; a wrong name lists them.")] = "V100",
    precision: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="fp32, tf32, amp or bf16, where the GPU has it.  [fp32, or the step's own]"),
    ] = None,
    batch_size: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Samples a step; the model's own default, or what the step passes to its module."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Write every shipped workload.")] = False,
) -> None:
    """Estimate a workload by a roofline of its operators; it says that it is an estimate."""
    if [all_, model is not None, step is not None].count(True) != 1:
        remedy = "e.g. --model resnet50 --gpu A100"
        raise InputError("give one of --model, --step and --all", place="estimate", remedy=remedy)
    from ddpexec.capturing.estimate import estimate_model, estimate_step, write_shipped
    from ddpsim.workload.files import save_workload

    def note(message: str) -> None:
        print(f"note: {message}", file=sys.stderr)

    if step is not None:
        save_workload(estimate_step(step, gpu, precision, batch_size=batch_size, note=note), output)
        print(output)
        return
    if model is not None:
        save_workload(estimate_model(model, gpu, precision or "fp32", batch_size), output)
        print(output)
        return
    for path in write_shipped(output):
        print(path)
