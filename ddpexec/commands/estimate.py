"""`python -m ddpexec estimate`: workloads from operator counts, for GPUs that are not at hand."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver
from ddpsim.cli.expand import OnlyFields, expand
from ddpsim.cli.progress import show, shown
from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Section
from ddpsim.simulation.jobs.simulated import Options

if TYPE_CHECKING:
    from ddpsim.workload import Workload
    from ddpsim.workload.estimate import EstimateOptions
    from ddpsim.workload.gpus import AchievedGpu

_SHIPPED_PRECISION = "fp32"
_DATA_CENTRE = re.compile(r"[A-Z]{1,2}\d+[A-Z]?")
"""Names that are listed where none is given: `GB200`, not `RTX4090` or `A100-PCIe-80GB`, or there were a hundred."""
_OF_A_JOB = ("accumulate", "optimizer", "clip_gradients", "jitter")
_HELP = {"accumulate": "Micro-batches of the step that --one-gpu-step times; it says nothing without that."}


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateArguments:
    """What `estimate` is asked: a model or step, a GPU, and what of eager mode is left out."""

    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="Workload file to write, - is stdout; with --all a folder."),
        Section.OUTPUT,
    ]
    model: Annotated[str | None, typer.Option(help="A shipped model: resnet50, gpt2-small-s64, ..."), Section.JOB] = (
        None
    )
    step: Annotated[
        str | None,
        typer.Option(help="package.module:function that returns (module, step), as capture takes it."),
        Section.JOB,
    ] = None
    gpu: Annotated[
        str | None, typer.Option(help="V100, A100, H100, B200, ...; without, a list of them."), Section.MACHINE
    ] = None
    gpu_file: Annotated[
        Path | None, typer.Option(metavar="G.yaml", help="Describes a GPU that is not in the table."), Section.MACHINE
    ] = None
    memory_bandwidth: Annotated[
        str | None,
        typer.Option(metavar="1792GB/s", help="Of the GPU's memory: another than --gpu's, or of one."),
        Section.MACHINE,
    ] = None
    peak: Annotated[
        list[str] | None,
        typer.Option(metavar="amp=504T", help="Of the GPU in a precision, dense; repeatable."),
        Section.MACHINE,
    ] = None
    memory: Annotated[str | None, typer.Option(metavar="96GiB", help="Of the GPU."), Section.MACHINE] = None
    multiprocessors: Annotated[int | None, typer.Option(min=1, help="Of the GPU."), Section.MACHINE] = None
    precision: Annotated[
        str | None,
        typer.Option(help="fp32, tf32, amp or bf16, where the GPU has it. [fp32, or the step's own]"),
        Section.JOB,
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Samples a step; the model's own default, or what the step passes to its module."),
        Section.JOB,
    ] = None
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens a sequence, of a shipped model; a step's own tensors have theirs.")
    ] = None
    activation_checkpointing: Annotated[
        bool,
        typer.Option("--activation-checkpointing", help="Each of the model's equal layers runs again in backward."),
    ] = False
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="TERM", help="Leave a term's device time out: casts, norms, loss, ...; repeatable."),
    ] = None
    one_gpu_step: Annotated[
        list[str] | None,
        typer.Option(
            metavar="122.18ms",
            help="Measured on one GPU: the step, 20.94ms±0.1% where its repetitions are known, or a phase as "
            "backward=80ms; repeatable.",
        ),
        Section.JOB,
    ] = None
    pace_of: Annotated[
        Path | None,
        typer.Option(metavar="W", help="Another estimate for this GPU, made with --one-gpu-step: take its pace."),
        Section.JOB,
    ] = None
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="W", help="A capture to carry to the GPU, with its batch."),
        Section.JOB,
    ] = None
    all_: Annotated[bool, typer.Option("--all", help="Write every shipped workload."), Section.JOB] = False


@expand
def estimate(
    arguments: EstimateArguments,
    job: Annotated[Options, OnlyFields(_OF_A_JOB, _HELP)],
) -> None:
    """Estimate a workload by a roofline of its operators; it says that it is an estimate."""
    counted = arguments.model is not None or arguments.from_ is not None
    if arguments.all_ + counted + (arguments.step is not None) != 1:
        remedy = "e.g. --model resnet50 --gpu A100, or --from capture.json --gpu A100"
        raise InputError("give one of --model, --step, --from and --all", place="estimate", remedy=remedy)
    refuse_excluded(job, "estimate", beside=asdict(arguments))
    from ddpexec.capturing.estimate import carry_model, write_shipped
    from ddpsim.workload.anchors import TERM_SHARES, RooflineFactors, parse_anchor
    from ddpsim.workload.estimate import EstimateOptions
    from ddpsim.workload.files import load_workload
    from ddpsim.workload.fusing import CompiledAs
    from ddpsim.workload.gpus import kind_of
    from ddpsim.workload.optimizers import optimizer_named
    from ddpsim.workload.replayed import COMPILED, add_jitter

    if arguments.all_:
        for path in write_shipped(arguments.output):
            print(path)
        return
    check_destination(arguments.output)
    whose = _gpu(arguments)
    if arguments.from_ is not None:
        carried = carry_model(load_workload(arguments.from_), whose, arguments.model, arguments.precision)
        for line in carried.notes:
            _note(line)
        _deliver(add_jitter(carried.workload, job.jitter), arguments.output)
        return
    paced = None if arguments.pace_of is None else load_workload(arguments.pace_of)
    if paced is not None and kind_of(paced.device) != kind_of(whose.name):
        _note(f"{arguments.pace_of} has the pace of {paced.device}, taken for {whose.name}")
    options = EstimateOptions(
        anchors=tuple(parse_anchor(text, "--one-gpu-step") for text in arguments.one_gpu_step or ()),
        optimizer=None if job.optimizer is None else optimizer_named(job.optimizer, clipping=job.clip_gradients),
        pace=None if paced is None else RooflineFactors.of(paced.provenance, str(arguments.pace_of)),
        accumulate=job.accumulate,
        without=tuple(arguments.without or ()),
    )
    with shown(f"counting the operators of {arguments.step or arguments.model} ..."):
        workload = _make_estimate(arguments, whose, options)
    if workload.provenance.get(COMPILED) is True:
        compiled_as = CompiledAs.of(workload.provenance)
        other = "compiled by torch.compile with another backend than inductor: priced operator by operator"
        _note(f"{workload.name} is {other if compiled_as is None else compiled_as.text()}")
    if isinstance(shares := workload.provenance.get(TERM_SHARES), Mapping):
        listed = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        _note(f"device time: {listed}; waves and minimum are within the others, --without TERM leaves one out")
    for line in workload.left_out:
        _note(line)
    _warn(workload)
    _deliver(add_jitter(workload, job.jitter), arguments.output)


def _make_estimate(arguments: EstimateArguments, whose: AchievedGpu, options: EstimateOptions) -> Workload:
    """Return the estimate of the step or model that was asked for."""
    from ddpexec.capturing.estimate import estimate_model, estimate_step

    again = arguments.activation_checkpointing
    if arguments.step is not None:
        return estimate_step(
            arguments.step,
            whose,
            arguments.precision,
            batch_size=arguments.batch_size,
            options=options,
            checkpointing=again,
            note=_note,
        )
    assert arguments.model is not None
    length, precision = arguments.sequence_length, arguments.precision or _SHIPPED_PRECISION
    name = arguments.model if length is None else f"{arguments.model}-s{length}"
    return estimate_model(name, whose, precision, arguments.batch_size, options, checkpointing=again)


def _deliver(workload: Workload, output: Path) -> None:
    from ddpsim.common.files import json_text
    from ddpsim.workload.files import workload_document

    deliver(output, json_text(workload_document(workload)))
    if str(output) != STANDARD_OUTPUT:
        print(output)


def _note(message: str) -> None:
    show("")
    print(f"note: {message}", file=sys.stderr)


def _gpu(arguments: EstimateArguments) -> AchievedGpu:
    from ddpsim.workload.gpu_options import gpu_with
    from ddpsim.workload.gpus import GPUS, AchievedGpu, gpu_named

    name, file = arguments.gpu, arguments.gpu_file
    own = arguments.memory_bandwidth, arguments.peak or [], arguments.memory, arguments.multiprocessors
    if file is None and own == (None, [], None, None):
        if name is None:
            known = ", ".join(filter(_DATA_CENTRE.fullmatch, GPUS))
            remedy = f"give one: {known}, RTX4090, ...; or describe it: `gpu_file`, or `memory_bandwidth` with `peak`"
            raise InputError("for which GPU is not said", place="gpu", remedy=remedy)
        return gpu_named(name).with_fitted()
    return AchievedGpu.of(gpu_with(name, file, *own)).with_fitted()


def _warn(workload: Workload) -> None:
    from math import exp

    from ddpsim.workload.anchors import ROOFLINE_BAND

    scale, (low, high) = workload.provenance["scale"], map(exp, ROOFLINE_BAND)
    if isinstance(scale, float) and not low <= scale <= high and workload.provenance.get("scaled_to"):
        print(
            f"warning: the time given is {scale:.3g} times the roofline's, beyond its band of {low:.2f} to {high:.2f}; "
            "was it of this GPU, batch size and precision, without data loading, and of one GPU? For a row of several "
            "use `ddpsim workload anchor`",
            file=sys.stderr,
        )
