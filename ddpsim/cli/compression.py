"""`ddpsim compression`: up to which bandwidth compressing gradients pays, by machine and scheme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.expand import expand
from ddpsim.cli.options import GpusPerNode, MachineNames, NodeCount, WorkloadName
from ddpsim.cli.output import TableOutput
from ddpsim.cli.progress import Progress
from ddpsim.errors import InputError
from ddpsim.tables import text_of

if TYPE_CHECKING:
    from ddpsim.planning.codec_break_even import CodecRow


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionArguments:
    """What `compression` is asked: a workload on a machine, and the schemes to hold against DDP."""

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
    given: ConstantOptions,
    output: TableOutput,
) -> None:
    """Find the rate of the NICs below which compressed gradients make a step faster, with its 80 % band.

    What encoding costs is measured by `microbench` and carried in a calibration; else it is priced as copies are, and
    the band says how far off that may be. Loss is another matter: see the page of findings.
    """
    from ddpsim.planning.codec_break_even import SCHEMES, codec_rows
    from ddpsim.prediction.models import Model
    from ddpsim.topology.spec import load_topology

    model = Model.of(arguments.workload)
    asked = SCHEMES if arguments.schemes is None else tuple(arguments.schemes.split(","))
    machines = [load_topology(name) for name in arguments.topology]
    if not all(asked):
        raise InputError("a scheme without a name", place="schemes", remedy="write e.g. fp16,powersgd:4")
    calibration = given.calibration_in_force("gloo" if model.source.one_clock else "nccl")
    rows: list[CodecRow] = []
    told = Progress("compression: schemes")
    for machine in machines:
        for row in codec_rows(
            model.on(machine),
            machine,
            asked,
            nodes=arguments.nodes,
            gpus_per_node=arguments.gpus_per_node,
            calibration=calibration,
        ):
            rows.append(row)
            told(len(rows), len(machines) * len(asked))
    records = [row.document() for row in rows]
    output.emit_rows(
        {"workload": model.source.name, "rows": records},
        "compression",
        lambda: records,
        lambda: text_of("compression", records, output.asked),
    )
