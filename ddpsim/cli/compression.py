"""`ddpsim compression`: up to which bandwidth compressing gradients pays, by machine and scheme."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.expand import expand
from ddpsim.cli.keeping import make_resumable
from ddpsim.cli.options import GpusPerNode, MachineNames, NodeCount, WorkloadName
from ddpsim.cli.output import TableOutput
from ddpsim.common.errors import InputError
from ddpsim.common.tables import text_of
from ddpsim.common.workers.requests import Workers
from ddpsim.simulation.jobs.simulated import Options

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionArguments:
    """Arguments of `compression`: a workload on a machine, and the schemes to hold against DDP."""

    workload: WorkloadName
    topology: MachineNames
    nodes: NodeCount = None
    gpus_per_node: GpusPerNode = None
    schemes: Annotated[
        str | None,
        typer.Option(metavar="fp16,powersgd:4", help="As --compression of predict. [one of each family]"),
    ] = None


@expand
def compression(
    arguments: CompressionArguments,
    constants: ConstantOptions,
    by: Workers,
    output: TableOutput,
) -> None:
    """Find the rate of the NICs below which compressed gradients make a step faster, with its 80 % band.

    What encoding costs is measured by `microbench` and carried in a calibration; else it is priced as copies are, and
    the band says how far off that may be. Loss is another matter: see the page of findings.
    """
    from ddpsim.planning.codec_break_even import SCHEMES, codec_rows
    from ddpsim.planning.planner import jobs_of, places_of
    from ddpsim.prediction.answers import name_job
    from ddpsim.prediction.models import Model
    from ddpsim.topology.spec import load_topology

    model = Model.of(arguments.workload)
    schemes = SCHEMES if arguments.schemes is None else tuple(arguments.schemes.split(","))
    machines = [load_topology(name) for name in arguments.topology]
    if not all(schemes):
        raise InputError("a scheme without a name", place="schemes", remedy="write e.g. fp16,powersgd:4")
    calibration = constants.calibration_in_force("gloo" if model.source.one_clock else "nccl")
    jobs = jobs_of(model, places_of(machines, [arguments.nodes]), Options(), arguments.gpus_per_node, calibration)
    with make_resumable(by, len(jobs)) as done:
        rows_by_machine = done.compute(partial(codec_rows, schemes=schemes), jobs, name_job, what="machines")
    records = [row.document() for each in rows_by_machine for row in each]
    output.emit_rows(
        {"workload": model.source.name, "rows": records},
        "compression",
        lambda: records,
        lambda: text_of("compression", records, output.column_names),
    )
