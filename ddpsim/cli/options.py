"""Options that are files, and bucket caps to try, which several commands share."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Section
from ddpsim.common.options.text import caps
from ddpsim.simulation.jobs.job_options import JobOptions

if TYPE_CHECKING:
    from ddpsim.bucketing import BucketCaps, BucketPlan, Parameter
    from ddpsim.collectives.calibration import Calibration

AnyJob = TypeVar("AnyJob", bound=JobOptions)

WorkloadName = Annotated[
    str, typer.Option("--workload", metavar="W", help="Shipped workload, or a file; - is standard input."), Section.JOB
]
TopologyName = Annotated[
    str,
    typer.Option("--topology", metavar="T", help="Shipped machine, or a YAML file; - is standard input."),
    Section.MACHINE,
]
MachineNames = Annotated[
    list[str], typer.Option("--topology", metavar="T", help="Machine or YAML file; may be repeated."), Section.MACHINE
]
NodeCount = Annotated[
    int | None, typer.Option("--nodes", metavar="N", help="Nodes. [the machine's own]"), Section.MACHINE
]
NodeCounts = Annotated[
    str | None, typer.Option("--nodes", metavar="1,2,4", help="Node counts. [each machine's own]"), Section.MACHINE
]
GpusPerNode = Annotated[
    int | None,
    typer.Option("--gpus-per-node", metavar="G", help="Use the first G GPUs of a node. [all]"),
    Section.MACHINE,
]
PlanFile = Annotated[
    str | None, typer.Option("--plan", metavar="FILE", help="A plan file instead of caps."), Section.BUCKETS
]
CalibrationFile = Annotated[
    str | None,
    typer.Option("--calibration", metavar="C", help="Calibration file of `ddpsim calibrate`."),
    Section.MACHINE,
]
Schemes = Annotated[
    str | None,
    typer.Option(metavar="ddp,fsdp2,hsdp:8", help="Schemes, a row each, as --scheme takes them. [--scheme]"),
    Section.BUCKETS,
]
SweptCaps = Annotated[
    str | None,
    typer.Option(
        "--bucket-cap-mb",
        metavar="1,5,25",
        help="Caps to try, each for every bucket, MiB; 0: a bucket a gradient. [torch: first 1, then 25]",
    ),
    Section.BUCKETS,
]


def parse_swept_caps(text: str | None, job: JobOptions) -> list[BucketCaps] | None:
    """Return the caps of `--bucket-cap-mb 1,5,25`, each with the job's other caps; None without that option."""
    if text is None:
        return None
    refuse_excluded(None, "bucket caps", beside=asdict(job.caps) | {"bucket_cap_mb": text})
    return [replace(job.caps, bucket_cap_mb=cap) for cap in caps(text, "bucket_cap_mb", "1,5,25")]


def refuse_beside_plan(plan: str | None, job: JobOptions, bucket_cap_mb: str | None = None) -> None:
    """Raise InputError for options on buckets together with a plan file, which determines them all."""
    caps_set = {name: value is not None for name, value in asdict(job.caps).items()}
    caps_set["bucket_cap_mb"] |= bucket_cap_mb is not None
    refuse_excluded(job, "plan files", beside=caps_set | {"plan": plan})


def read_plan(path: str | None, parameters: tuple[Parameter, ...]) -> BucketPlan | None:
    """Return the plan in the file that --plan names; None without one."""
    if path is None:
        return None
    from ddpsim.planning.plan_file import load_plan

    return load_plan(path, parameters)


def read_calibration(path: str | None) -> Calibration | None:
    """Return the calibration that --calibration names; None without one."""
    if path is None:
        return None
    from ddpsim.collectives.calibration_file import load_calibration

    return load_calibration(path)
