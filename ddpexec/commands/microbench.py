"""`torchrun ... -m ddpexec microbench`: what an allreduce and DDP's own work cost on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional

import typer


def microbench(
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON to write, nccl-tests' -J shape.")],
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
    """Measure isolated allreduces, DDP's host costs and, under load, the slow-downs; for `ddpsim calibrate`."""
    from ddpsim.units import float32_size, nccl_sizes, parse_nccl_size

    wanted = nccl_sizes(float32_size(begin, "-b"), parse_nccl_size(end, "-e"), factor)
    at_once = [[float32_size(size, "--together") for size in each.split(",")] for each in together or ()]
    import torch

    from ddpexec.groups.launched import launched
    from ddpexec.microbench.microbench import microbench as measure
    from ddpsim.files import json_text, write_whole
    from ddpsim.workload.files import load_workload

    workload = None if under_load is None else load_workload(under_load)
    if threads is not None:
        torch.set_num_threads(threads)
    with launched("microbench", backend, device) as rank:

        def progress(line: str) -> None:
            if rank.communicator.rank == 0:
                print(f"microbench: {line}", file=sys.stderr, flush=True)

        document = measure(rank, wanted, workload, progress, together=at_once, load_s=load_seconds)
        if rank.communicator.rank == 0:
            text = json_text(document)
            write_whole(output, text)
            print(text if json_ else f"written to {output}", end="" if json_ else "\n")
