"""`torchrun ... -m ddpexec run`: train a model for real and trace it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ddpexec.groups.termination import ignore_termination, terminated_as_error
from ddpsim.cli.breakdown import breakdown
from ddpsim.cli.expand import expand
from ddpsim.cli.job_options import JobOptions
from ddpsim.cli.options import PlanOptions
from ddpsim.cli.output import Output, ms, percent, table
from ddpsim.units import parse_time

if TYPE_CHECKING:
    from ddpexec.ddp.parameters import ModelParameters
    from ddpexec.running.run import Run
    from ddpexec.running.settings import Settings
    from ddpsim.bucketing import BucketPlan
    from ddpsim.trace.metrics import Summary


@dataclass(frozen=True, slots=True)
class RunOptions(JobOptions):
    """How the job runs; what `ddpsim predict` has too means the same."""

    impl: Annotated[str, typer.Option("--impl", metavar="ddpexec|torch", help="Whose DistributedDataParallel.")] = (
        "ddpexec"
    )
    device: Annotated[
        str | None, typer.Option(metavar="cpu|cuda", help="Where ranks compute; they may share a GPU. [cuda with nccl]")
    ] = None
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples a step and rank. [the model's own]")] = None
    iterations: Annotated[int, typer.Option(metavar="N", help="Iterations that count, after 5 discarded.")] = 20
    threads: Annotated[int | None, typer.Option(min=1, help="Host threads a rank. [torchrun's: 1]")] = None
    timeout: Annotated[str, typer.Option(metavar="TIME", help="How long to wait for a rank that does not come.")] = (
        "300s"
    )
    no_stamps: Annotated[bool, typer.Option("--no-stamps", help="Time whole iterations only.")] = False

    def settings(self, plan: PlanOptions) -> Settings:
        """Return the settings of the run."""
        from ddpexec.running.settings import Settings

        made = self.make(
            Settings,
            plan,
            caps=replace(plan, plan=None).caps(),
            implementation=self.impl,
            iterations=self.iterations,
            batch_size=self.batch_size,
            timeout=timedelta(seconds=parse_time(self.timeout, "--timeout")),
            observe=not self.no_stamps,
        )
        return cast("Settings", made)


@expand
def run(
    job: RunOptions,
    plan: PlanOptions,
    output: Output,
    out: Annotated[Path, typer.Option("--out", help="Folder for the traces, one file a rank, and run.json.")],
    model: Annotated[
        str | None, typer.Option(metavar="M", help="A shipped model: resnet50, gpt2-small-s64, ...")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="package.module:function", help="One's own step instead, as `capture` takes it."),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(metavar="W", help="A workload to replay with timed layers instead.")
    ] = None,
) -> None:
    """Train data parallel on the ranks that torchrun started; write what happened as traces."""
    from ddpsim.errors import InputError

    if [model, step, workload].count(None) != 2:
        raise InputError("give one of --model, --step and --workload", place="run", remedy="e.g. --model resnet50")
    if step is not None and (job.batch_size is not None or job.no_sync_every != 1):
        what = "--batch-size" if job.batch_size is not None else "--no-sync-every"
        raise InputError(
            f"{what} and --step are both given", remedy=f"the step has its own batch and steps; drop {what}"
        )
    plan.caps()
    settings = job.settings(plan)
    if model is not None:
        from ddpexec.models import builder

        builder(model, place="--model")
    recorded = None
    if workload is not None:
        from ddpsim.workload.files import load_workload

        recorded = load_workload(workload)
    import torch

    from ddpexec.groups.launched import abort_groups, launched
    from ddpexec.running.run import Run

    if job.threads is not None:
        torch.set_num_threads(job.threads)

    def chosen(parameters: ModelParameters) -> BucketPlan | None:
        return plan.plan_of(parameters.policy)

    join = launched("run", job.backend, job.device, settings.timeout.total_seconds())
    with join as rank, terminated_as_error(abort_groups):
        running = Run(settings, rank.device, model=model, step=step, workload=recorded, plan=chosen)
        _train(running, out, output)


def _train(running: Run, out: Path, output: Output) -> None:
    from ddpexec.groups.launched import abort_groups
    from ddpexec.running.provenance import provenance
    from ddpsim.trace.json import discard_trace, write_rank, write_run
    from ddpsim.trace.metrics import summarise

    discard_trace(out, running.rank, running.world_size)
    try:
        running.train(_progress(running.rank))
    except BaseException:
        ignore_termination()
        abort_groups()
        if running.observer.notes:
            write_rank(running.trace(), running.rank, out)
        raise
    running.provenance = provenance(running, sys.argv)
    trace = running.trace()
    write_rank(trace, running.rank, out)
    everything = running.gather(trace)
    if everything is None:
        return
    write_run(everything, out)
    summary = summarise(everything)
    cost = running.stamping_s() if running.settings.observe else 0.0
    document = {
        **summary.document(),
        "implementation": running.settings.implementation,
        "compute_device": running.provenance["compute_device"],
        "plan_fingerprint": running.provenance["plan_fingerprint"],
        "stamping_s": cost,
    }
    output.emit(document, lambda: _text(running, summary, cost, out))


def _text(running: Run, summary: Summary, stamping_s: float, out: Path) -> str:
    buckets = table(
        ["bucket", "bytes", "ready ms", "launched", "started", "finished", "written"],
        (
            [b.index, f"{b.size_bytes:,}", *map(ms, (b.ready_s, b.launched_s, b.started_s, b.finished_s, b.written_s))]
            for b in summary.buckets
        ),
    )
    name = f"{running.subject.model.name}, {running.world_size} ranks, {running.settings.implementation}"
    share = percent(stamping_s / summary.iteration_s)
    return (
        f"{name}: {ms(summary.iteration_s)} ms a step, overlap {percent(summary.overlap_ratio) or '-'}; "
        f"stamping cost {share} of it\n\n{breakdown(summary)}\n\n{buckets}\n\nwritten to {out}"
    )


def _progress(rank: int) -> Callable[[int, int, float], None]:
    def show(done: int, total: int, seconds: float) -> None:
        if rank == 0 and (sys.stderr.isatty() or done % 10 == 0 or done == total):
            end = "\r" if sys.stderr.isatty() and done < total else "\n"
            print(f"run: iteration {done} of {total}, {seconds * 1e3:.1f} ms".ljust(60), end=end, file=sys.stderr)

    return show
