"""`torchrun ... -m ddpexec run`: train a model for real and trace it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpexec.groups.environment import refuse_shared_input
from ddpexec.groups.termination import ignore_from_now_on
from ddpexec.running.pipeline_options import PipelineOptions, check_beside
from ddpexec.running.settings import RunSettings
from ddpsim.cli.breakdown import statistic, step_line
from ddpsim.cli.expand import expand
from ddpsim.cli.options import PlanFile, SweptCaps, parse_swept_caps, read_plan, refuse_beside_plan
from ddpsim.cli.output import Output, note_all
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Section
from ddpsim.common.tables import text_of
from ddpsim.common.tables.cells import ms, percent
from ddpsim.common.units import format_count

if TYPE_CHECKING:
    from ddpexec.ddp.parameters import ModelParameters
    from ddpexec.running.pipelines import PipelineRun
    from ddpexec.running.run import Run
    from ddpsim.bucketing import BucketCaps, BucketPlan
    from ddpsim.trace.metrics import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """What `run` is asked beside its settings: what is trained, and where traces go."""

    out: Annotated[
        Path, typer.Option("--out", help="Folder for the traces, one file a rank, and run.json."), Section.OUTPUT
    ]
    model: Annotated[
        str | None, typer.Option(metavar="M", help="A shipped model: resnet50, gpt2-small-s64, ..."), Section.JOB
    ] = None
    step: Annotated[
        str | None,
        typer.Option(metavar="package.module:function", help="One's own step instead, as `capture` takes it."),
        Section.JOB,
    ] = None
    workload: Annotated[
        str | None, typer.Option(metavar="W", help="A workload to replay with timed layers instead."), Section.JOB
    ] = None
    plan: PlanFile = None
    bucket_cap_mb: SweptCaps = None
    interleave: Annotated[
        bool,
        typer.Option(
            "--interleave",
            help="Take turns with one process in short blocks, A B C D D C B A: each --bucket-cap-mb, and its ratio "
            "to one process, which a machine that drifts changes little.",
        ),
        Section.JOB,
    ] = False
    device: Annotated[
        str | None,
        typer.Option(metavar="cpu|cuda", help="Where ranks compute; they may share a GPU. [cuda with nccl]"),
        Section.JOB,
    ] = None
    threads: Annotated[int | None, typer.Option(min=1, help="Host threads a rank. [torchrun's: 1]"), Section.JOB] = None


@expand
def run(
    arguments: RunArguments,
    settings: RunSettings,
    pipeline_options: PipelineOptions,
    output: Output,
) -> None:
    """Train data parallel on the ranks that torchrun started; write what happened as traces."""
    from ddpsim.common.errors import InputError
    from ddpsim.common.files import check_writable_folder

    # Everything that can be refused is refused before torch is imported and ranks wait for each other.
    swept = parse_swept_caps(arguments.bucket_cap_mb, settings) or [settings.caps]
    settings = replace(settings, caps=swept[0])
    if [arguments.model, arguments.step, arguments.workload].count(None) != 2:
        remedy = "e.g. `model=resnet50`"
        raise InputError("give one of `model`, `step` and `workload`", place="run", remedy=remedy)
    refuse_excluded(settings, "run --step", beside={"step": arguments.step})
    if pipeline_options.pipeline is not None:
        files = {
            "step": arguments.step is not None,
            "timed": arguments.workload is not None,
            "plan": arguments.plan is not None,
        }
        check_beside(pipeline_options, settings, **files)
    refuse_beside_plan(arguments.plan, settings)
    if arguments.interleave:
        from ddpexec.running.turns import check_turns

        check_turns(settings, step=arguments.step is not None, pipeline=pipeline_options.pipeline is not None)
    elif len(swept) > 1:
        what, remedy = "several caps need a run each, or turns in one", "add `interleave`, or give one cap"
        raise InputError(what, place="bucket_cap_mb", remedy=remedy)
    refuse_shared_input(arguments.workload, arguments.plan)
    check_writable_folder(arguments.out)
    if arguments.model is not None:
        from ddpexec.capturing.models import builder

        builder(arguments.model, place="model")
    recorded = None
    if arguments.workload is not None:
        from ddpsim.workload.files import load_workload

        recorded = load_workload(arguments.workload)
    import torch

    from ddpexec.groups.launched import join_launched
    from ddpexec.running.pipelines import PipelineRun
    from ddpexec.running.run import Run

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)

    def chosen(parameters: ModelParameters) -> BucketPlan | None:
        return read_plan(arguments.plan, parameters.policy)

    join = join_launched("run", settings.backend, arguments.device, settings.timeout.total_seconds(), settings.devices)
    with join as rank:
        if pipeline_options.pipeline is not None:
            in_stages = PipelineRun(
                settings, pipeline_options, rank.device, rank.communicator, model=arguments.model, workload=recorded
            )
            _train_in_stages(in_stages, rank.communicator.rank, arguments.out, output)
            return

        def make(caps: BucketCaps) -> Run:
            own = replace(settings, caps=caps)
            return Run(own, rank.device, model=arguments.model, step=arguments.step, workload=recorded, plan=chosen)

        if arguments.interleave:
            _train_in_turns([make(caps) for caps in swept], arguments.out, output)
        else:
            _train(make(swept[0]), arguments.out, output)


def _train_in_stages(running: PipelineRun, rank: int, out: Path, output: Output) -> None:
    from ddpexec.running.pipelines import write_measurement

    measured = running.train(_progress(rank))
    if rank != 0:
        return
    write_measurement(measured, out)
    output.emit(measured, lambda: f"{_format_pipeline(measured)}\n\nwritten to {out}")


def _format_pipeline(measured: dict[str, Any]) -> str:
    head = (
        f"{measured['model']}, {measured['pipeline']}, {format_count(measured['ranks_per_pipeline'], 'rank')} a "
        f"pipeline, copies {measured['copies']}: {ms(measured['step_s'])} ms a step, micro-batches "
        f"{measured['micro_batches']}"
    )
    if measured["error"] is None:
        return head
    return f"{head}\npredicted {ms(measured['predicted_step_s'])} ms, {percent(measured['error'], True)}"


def _train(running: Run, out: Path, output: Output) -> None:
    with _keep_what_there_is([running], [out]):
        running.train(_progress(running.rank))
    if (written := _write(running, out)) is not None:
        document, text = written
        output.emit(document, text)


def _train_in_turns(runs: Sequence[Run], out: Path, output: Output) -> None:
    """Train the runs in turns; each is written as a run of its own, below `out` where there are several."""
    from ddpexec.running.turns import train_in_turns

    caps = [run.settings.caps.bucket_cap_mb for run in runs]
    folders = [out / f"cap-{cap:g}" if len(runs) > 1 and cap is not None else out for cap in caps]
    with _keep_what_there_is(runs, folders):
        turns = train_in_turns(runs, _progress(runs[0].rank, "block"))
    written = []
    for run, folder, each in zip(runs, folders, turns, strict=True):
        run.turns = each
        written.append(_write(run, folder))
    traces = [each for each in written if each is not None]
    if traces:
        output.emit({"runs": [document for document, _ in traces]}, lambda: "\n\n".join(text() for _, text in traces))


@contextmanager
def _keep_what_there_is(runs: Sequence[Run], folders: Sequence[Path]) -> Iterator[None]:
    """Write the traces of runs that break off in this context."""
    from ddpexec.groups.launched import abort_groups
    from ddpsim.trace.json import discard_trace, write_rank

    for running, folder in zip(runs, folders, strict=True):
        discard_trace(folder, running.rank, running.world_size)
    try:
        yield
    except BaseException:
        # torchrun sends SIGTERM once a rank has failed. It is ignored from here, and calls that wait for lost ranks are
        # aborted, so that there is time to write the trace.
        ignore_from_now_on()
        abort_groups()
        for running, folder in zip(runs, folders, strict=True):
            if running.observer.notes:
                write_rank(running.trace(), running.rank, folder)
        raise


def _write(running: Run, out: Path) -> tuple[dict[str, Any], Callable[[], str]] | None:
    """Write this rank's trace; return on rank 0 the run's document and what makes its text."""
    from ddpexec.running.provenance import provenance
    from ddpsim.common.other_work import OtherWork
    from ddpsim.trace.json import write_rank, write_run
    from ddpsim.trace.metrics import summarise

    running.provenance = provenance(running, sys.argv)
    trace = running.trace()
    write_rank(trace, running.rank, out)
    everything = running.gather(trace)
    if everything is None:
        return None
    write_run(everything, out)
    summary = summarise(everything)
    cost = running.stamping_s() if running.settings.observe else 0.0
    document: dict[str, Any] = {
        **summary.document(),
        **running.settings.step_times(summary.iteration_s),
        "implementation": running.settings.carried_out_by,
        "compute_device": running.provenance["compute_device"],
        "plan_fingerprint": running.provenance["plan_fingerprint"],
        "stamping_s": cost,
        "local_s": everything.provenance.get("local_s"),
    }
    if running.turns:
        document["turns"] = everything.provenance["turns"]
    if (other := OtherWork.read(everything.provenance)) is not None:
        document |= other.document()
        note_all(other.notes())
    return document, lambda: _text(running, summary, cost, out)


def _text(running: Run, summary: Summary, stamping_s: float, out: Path) -> str:
    from ddpsim.trace.tables import parts_table

    parts, buckets = parts_table(summary).text("  "), text_of("run: buckets", [b.document() for b in summary.buckets])
    named = running.subject.model.name, format_count(running.world_size, "rank"), running.settings.carried_out_by
    steps = "".join(f"{line}\n" for line in step_line(running.settings, summary.iteration_s))
    share, hidden = percent(stamping_s / summary.iteration_s), percent(summary.overlap_ratio) or "-"
    return (
        f"{', '.join(named)}: {ms(summary.iteration_s)} ms a step{statistic(summary)}, overlap {hidden}; "
        f"stamping cost {share} of it\n{steps}\n{parts}\n\n{buckets}\n\nwritten to {out}"
    )


def _progress(rank: int, what: str = "iteration") -> Callable[[int, int, float], None]:
    def show(done: int, total: int, seconds: float) -> None:
        if rank == 0 and (sys.stderr.isatty() or done % 10 == 0 or done == total):
            end = "\r" if sys.stderr.isatty() and done < total else "\n"
            print(f"run: {what} {done} of {total}, {seconds * 1e3:.1f} ms".ljust(60), end=end, file=sys.stderr)

    return show
