"""`torchrun ... -m ddpexec microbench`: what an allreduce and DDP's own work cost on this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ddpexec.groups.environment import is_on_first_node, refuse_shared_input
from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver
from ddpsim.cli.expand import expand
from ddpsim.cli.output import note_all, write


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobenchArguments:
    """What `microbench` is asked: sizes, a load beside them, and where to run."""

    output: Annotated[Path, typer.Option("-o", "--output", help="JSON to write, nccl-tests' -J shape; - is stdout.")]
    begin: Annotated[str, typer.Option("-b", "--minbytes", help="First size, as nccl-tests takes it.")] = "4K"
    end: Annotated[str, typer.Option("-e", "--maxbytes", help="Last size.")] = "64M"
    factor: Annotated[int, typer.Option("-f", "--stepfactor", help="From each size to the next.")] = 2
    under_load: Annotated[
        str | None,
        typer.Option(help="Workload whose model runs beside collectives: measures how much each slows the other."),
    ] = None
    load_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long each of the four measurements under load takes.")
    ] = 8.0
    together: Annotated[
        list[str] | None,
        typer.Option(metavar="8M,8M", help="Also allreduces of these sizes launched at once; may be repeated."),
    ] = None
    backend: Annotated[str | None, typer.Option(help="gloo, nccl or mpi; nccl where every rank has a GPU.")] = None
    device: Annotated[
        str | None,
        typer.Option(metavar="cpu|cuda", help="Where buckets lie; ranks may share a GPU. [cuda with nccl]"),
    ] = None
    threads: Annotated[int | None, typer.Option(min=1, help="Host threads a rank.")] = None
    send_rate: Annotated[
        str | None, typer.Option(metavar="1gbit", help="Send no faster on each connection of gloo, as `run` does.")
    ] = None
    json_: Annotated[bool, typer.Option("--json", help="Print the document too.")] = False


@expand
def microbench(
    arguments: MicrobenchArguments,
) -> None:
    """Measure isolated allreduces, DDP's host costs and, under load, the slow-downs; for `ddpsim calibrate`.

    What is done is kept in OUTPUT.part until all is: the same command goes on where it was stopped.
    """
    from ddpsim.common.units import float32_size, nccl_sizes, parse_bandwidth, parse_nccl_size

    wanted = nccl_sizes(float32_size(arguments.begin, "-b"), parse_nccl_size(arguments.end, "-e"), arguments.factor)
    at_once = [[float32_size(size, "--together") for size in each.split(",")] for each in arguments.together or ()]
    rate = None if arguments.send_rate is None else parse_bandwidth(arguments.send_rate, "send_rate")
    refuse_shared_input(arguments.under_load)
    if is_on_first_node():
        check_destination(arguments.output, as_json=arguments.json_)
    import torch

    from ddpexec.groups.launched import join_launched
    from ddpexec.groups.send_rate import limit_send_rate
    from ddpexec.microbench.microbench import ComputingLoad, forget
    from ddpexec.microbench.microbench import microbench as measure
    from ddpsim.common.files import is_regular, json_text
    from ddpsim.common.other_work import OtherWork
    from ddpsim.workload.files import load_workload

    workload = None if arguments.under_load is None else load_workload(arguments.under_load)
    load = ComputingLoad(workload, arguments.load_seconds)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    with join_launched("microbench", arguments.backend, arguments.device) as rank:
        if rate is not None:
            limit_send_rate(rate, rank.communicator.backend)

        def progress(line: str) -> None:
            if rank.communicator.rank == 0:
                print(f"microbench: {line}", file=sys.stderr, flush=True)

        keep = arguments.output if is_regular(arguments.output) and str(arguments.output) != STANDARD_OUTPUT else None
        document = measure(rank, wanted, load, progress, together=at_once, keep=keep)
        if rank.communicator.rank == 0:
            config = document["config"]
            other = OtherWork.read(config) if isinstance(config, dict) else None
            note_all([] if other is None else other.notes())
            text = json_text(document)
            deliver(arguments.output, text)
            if keep is not None:
                forget(keep, rank)
            if str(arguments.output) != STANDARD_OUTPUT:
                write(text.rstrip() if arguments.json_ else f"written to {arguments.output}")
