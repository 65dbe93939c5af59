"""`ddpsim compression`: up to which bandwidth compressing gradients pays, by machine and scheme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.expand import expand
from ddpsim.cli.keeping import make_resumable
from ddpsim.cli.options import GpusPerNode, MachineNames, NodeCount, WorkloadName
from ddpsim.cli.output import Output, table
from ddpsim.errors import InputError
from ddpsim.jobs.simulated import Options
from ddpsim.tables.cells import ms, percent
from ddpsim.workers.asked import Workers

if TYPE_CHECKING:
    from ddpsim.planning.codec_break_even import CodecRow

_HEADER = ("machine", "nodes", "scheme", "fewer bytes", "plain ms", "step ms", "gain", "pays below", "encoding")


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
    by: Workers,
    output: Output,
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
    asked = SCHEMES if arguments.schemes is None else tuple(arguments.schemes.split(","))
    machines = [load_topology(name) for name in arguments.topology]
    if not all(asked):
        raise InputError("a scheme without a name", place="schemes", remedy="write e.g. fp16,powersgd:4")
    calibration = given.calibration_in_force("gloo" if model.source.one_clock else "nccl")
    jobs = jobs_of(model, places_of(machines, [arguments.nodes]), Options(), arguments.gpus_per_node, calibration)
    with make_resumable(by, len(jobs)) as done:
        found = done.compute(partial(codec_rows, schemes=asked), jobs, name_job, what="machines")
    rows = [row for each in found for row in each]
    output.emit({"workload": model.source.name, "rows": [row.document() for row in rows]}, lambda: _text(rows))


def _text(rows: Sequence[CodecRow]) -> str:
    lines = [
        (
            row.machine, row.nodes, row.scheme, f"{row.ratio:.1f}", ms(row.plain_s), ms(row.step_s),
            percent(row.gain, signed=True), _rate(row), "measured" if row.measured else "prior",
        )
        for row in rows
    ]  # fmt: skip
    return table(_HEADER, lines, left=(0, 2, 7, 8))


def _rate(row: CodecRow) -> str:
    if row.rate_Bps is None or row.rate_low_Bps is None or row.rate_high_Bps is None:
        return row.why
    middle, low, high = (f"{8e-9 * rate:.3g}" for rate in (row.rate_Bps, row.rate_low_Bps, row.rate_high_Bps))
    return f"{middle} Gb/s ({low} to {high})"
