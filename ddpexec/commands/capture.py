"""`python -m ddpexec capture`: measure one rank's iteration without communication."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpexec.groups.environment import has_others, is_first_rank, is_on_first_node
from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver
from ddpsim.cli.expand import expand
from ddpsim.cli.output import JsonDocument, note, note_all, write
from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded

if TYPE_CHECKING:
    from ddpsim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureArguments:
    """What `capture` is asked: a model or step, how it runs, and how long it is watched."""

    output: Annotated[Path, typer.Option("-o", "--output", help="Workload file, .json or .json.gz; - is stdout.")]
    model: Annotated[str | None, typer.Option(help="A shipped model: resnet50, gpt2-small-s64, ...")] = None
    step: Annotated[
        str | None,
        typer.Option(help="package.module:function that returns (module, step); step() trains once."),
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Samples a step; the model's own default, or what the step passes to its module."),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(help="fp32, tf32, bf16 or amp (bf16 autocast); default fp32."),
    ] = None
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; default the GPU where there is one.")] = ""
    threads: Annotated[int | None, typer.Option(min=1, help="Host threads; give those a rank will have.")] = None
    iterations: Annotated[int, typer.Option(min=1, help="Iterations to record.")] = 10
    warm_up: Annotated[int, typer.Option(min=0, help="Iterations to discard first.")] = 3
    json_: JsonDocument = False


@expand
def capture(
    arguments: CaptureArguments,
) -> None:
    """Record real iterations of one process: forward, backward with every gradient's time, optimizer.

    Under torchrun all ranks record at once, which is how they will share a machine; one file has the iterations of all.
    """
    if (arguments.model is None) == (arguments.step is None):
        raise InputError("give one of --model and --step", place="capture", remedy="e.g. --model resnet50")
    refuse_excluded(arguments, "capture")
    if is_on_first_node():
        check_destination(arguments.output, as_json=arguments.json_)
    from ddpexec.capturing.capture import CaptureSettings, capture_alone, capture_model, capture_step, capture_together
    from ddpsim.common.files import json_text
    from ddpsim.common.other_work import OtherWork
    from ddpsim.common.units import format_time
    from ddpsim.workload.files import workload_document

    def progress(done: int, total: int, seconds: float) -> None:
        line = f"capture: iteration {done} of {total}, {format_time(seconds)}"
        end = "\r" if sys.stderr.isatty() and done < total else "\n"
        if is_first_rank():
            print(line.ljust(60) if end == "\r" else line, end=end, file=sys.stderr, flush=True)

    settings = CaptureSettings(
        iterations=arguments.iterations, warm_up=arguments.warm_up, threads=arguments.threads, progress=progress
    )

    def record(place: str) -> Workload:
        if arguments.step is not None:
            return capture_step(arguments.step, settings, batch_size=arguments.batch_size)
        return capture_model(
            str(arguments.model),
            settings,
            batch_size=arguments.batch_size,
            precision=arguments.precision or "fp32",
            device=place,
        )

    workload = (capture_together if has_others() else capture_alone)(record, arguments.device)
    if workload is None:
        return
    other = OtherWork.read(workload.provenance)
    note_all([*([] if other is None else other.notes()), *workload.left_out])
    deliver(arguments.output, json_text(workload_document(workload)))
    medians = {
        f"{name}_s": float(sorted(times)[len(times) // 2])
        for name, times in (
            ("forward", workload.forward.host_s),
            ("backward", workload.backward.host_s),
            ("optimizer", workload.optimizer.host_s),
        )
    }
    if arguments.json_:
        summary = {"name": workload.name, "device": workload.device_label, "iterations": workload.iterations, **medians}
        more = {"batch_size": workload.batch_size, "threads": workload.threads, "ranks": workload.ranks}
        write(json.dumps({**summary, **more, **({} if other is None else other.document())}, indent=2))
        return
    ranks = f", {workload.ranks} ranks at once" if workload.ranks > 1 else ""
    parts = ", ".join(f"{name.removesuffix('_s')} {format_time(seconds)}" for name, seconds in medians.items())
    say = note if str(arguments.output) == STANDARD_OUTPUT else write
    say(f"{workload.name}: {parts} (host, median of {workload.iterations}{ranks}); written to {arguments.output}")
