"""`torchrun ... -m ddpexec microbench`: what an allreduce and DDP's own work cost on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from ddpexec.groups.torchrun import on_first_node, refuse_shared_input
from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver
from ddpsim.cli.output import write


def microbench(
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON to write, nccl-tests' -J shape; - is stdout.")],
    begin: Annotated[str, typer.Option("-b", "--minbytes", help="First size, as nccl-tests takes it.")] = "4K",
    end: Annotated[str, typer.Option("-e", "--maxbytes", help="Last size.")] = "64M",
    factor: Annotated[int, typer.Option("-f", "--stepfactor", help="From each size to the next.")] = 2,
    under_load: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Workload whose model runs beside collectives: measures how much each slows the other."),
    ] = None,
    load_seconds: Annotated[
        float, typer.Option(min=0.1, help="How long each of the four measurements under load takes.")
    ] = 8.0,
    together: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="8M,8M", help="Also allreduces of these sizes launched at once; may be repeated."),
    ] = None,
    backend: Annotated[Optional[str], typer.Option(help="gloo or nccl; nccl where every rank has a GPU.")] = None,  # noqa: UP045
    device: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="cpu|cuda", help="Where buckets lie; ranks may share a GPU. [cuda with nccl]"),
    ] = None,
    threads: Annotated[Optional[int], typer.Option(min=1, help="Host threads a rank.")] = None,  # noqa: UP045
    json_: Annotated[bool, typer.Option("--json", help="Print the document too.")] = False,
) -> None:
    """Measure isolated allreduces, DDP's host costs and, under load, the slow-downs; for `ddpsim calibrate`.

    What is done is kept in OUTPUT.part until all is: the same command goes on where it was stopped.
    """
    from ddpsim.units import float32_size, nccl_sizes, parse_nccl_size

    wanted = nccl_sizes(float32_size(begin, "-b"), parse_nccl_size(end, "-e"), factor)
    at_once = [[float32_size(size, "--together") for size in each.split(",")] for each in together or ()]
    refuse_shared_input(under_load)
    if on_first_node():
        check_destination(output, as_json=json_)
    import torch

    from ddpexec.groups.launched import launched
    from ddpexec.microbench.microbench import forget
    from ddpexec.microbench.microbench import microbench as measure
    from ddpsim.files import is_regular, json_text
    from ddpsim.workload.files import load_workload

    workload = None if under_load is None else load_workload(under_load)
    if threads is not None:
        torch.set_num_threads(threads)
    with launched("microbench", backend, device) as rank:

        def progress(line: str) -> None:
            if rank.communicator.rank == 0:
                print(f"microbench: {line}", file=sys.stderr, flush=True)

        keep = output if is_regular(output) and str(output) != STANDARD_OUTPUT else None
        document = measure(rank, wanted, workload, progress, together=at_once, load_s=load_seconds, keep=keep)
        if rank.communicator.rank == 0:
            text = json_text(document)
            deliver(output, text)
            if keep is not None:
                forget(keep, rank)
            if str(output) != STANDARD_OUTPUT:
                write(text.rstrip() if json_ else f"written to {output}")
