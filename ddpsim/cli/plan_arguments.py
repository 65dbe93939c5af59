"""Arguments of `ddpsim plan` next to those of a job; with `--search` too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from ddpsim.cli.destination import ReportFile, plot_option
from ddpsim.cli.options import GpusPerNode, MachineNames, NodeCounts, PlanFile, Schemes, SweptCaps
from ddpsim.common.options.option import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanArguments:
    """Arguments of `plan`: workloads, machines, sizes, caps, and where to write."""

    workload: Annotated[list[str], typer.Option(metavar="W", help="Workload or file; may be repeated."), Section.JOB]
    topology: MachineNames
    nodes: NodeCounts = None
    gpus_per_node: GpusPerNode = None
    bucket_cap_mb: SweptCaps = None
    plan: PlanFile = None
    schemes: Schemes = None
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Look over schemes, --tensor-parallel, micro-batches and caps, and show the best few that fit.",
        ),
        Section.BUCKETS,
    ] = False
    tensor_parallel: Annotated[
        str | None,
        typer.Option(
            "--tensor-parallel",
            metavar="1,2,8",
            help="Consecutive ranks that share each layer of an estimated transformer, as `predict` takes them; with "
            "--search several. [1, with --search powers of two in a node]",
        ),
        Section.JOB,
    ] = None
    pipeline: Annotated[
        str | None,
        typer.Option(
            "--pipeline",
            metavar="ORDER:P[,...]",
            help="Cut the model into stages, as `predict` takes it; with --search several, as none,1f1b:2,1f1b:4, each "
            "with the micro-batches of its step. [none, with --search also 1F1B with powers of two]",
        ),
        Section.JOB,
    ] = None
    micro_batch_size: Annotated[
        str | None,
        typer.Option(
            metavar="1,2,4",
            help="With --search: samples that a rank, or ranks that share layers, compute at once, estimated anew. "
            "[the workload's own by powers of two, of an estimate]",
        ),
        Section.JOB,
    ] = None
    global_batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="With --search: samples of a step, of all ranks. [batch x ranks x --accumulate]"
        ),
        Section.JOB,
    ] = None
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="80GB", help="What a rank may take of its GPU's memory. [all of it]"),
        Section.MACHINE,
    ] = None
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="FILE.json", help="Write the best row's plan, of one workload; - is standard output."
        ),
        Section.OUTPUT,
    ] = None
    plot: Annotated[str | None, plot_option("Draw latency over bucket cap, a panel a machine."), Section.OUTPUT] = None
    report: ReportFile = None
