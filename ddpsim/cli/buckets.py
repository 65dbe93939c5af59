"""`ddpsim buckets`: the buckets torch makes, and why each closed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.bucketing import BucketCaps
from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver
from ddpsim.cli.expand import OnlyFields, expand
from ddpsim.cli.options import PlanFile, WorkloadName, read_plan, refuse_beside_plan
from ddpsim.cli.output import Output
from ddpsim.common.options.option import list_declared
from ddpsim.common.tables import table_of
from ddpsim.simulation.jobs.job_options import JobOptions

if TYPE_CHECKING:
    from ddpsim.bucketing import BucketPlan


@expand
def buckets(
    workload: WorkloadName,
    job: Annotated[
        JobOptions,
        OnlyFields(
            (
                *(each.field for each in list_declared(BucketCaps)),
                *("assignment", "find_unused_parameters", "drop", "drop_buckets"),
            )
        ),
    ],
    output: Output,
    plan: PlanFile = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE", help="Write the plan file; - is stdout.")
    ] = None,
) -> None:
    """Show a model's buckets in launch order, and why each closed."""
    from ddpsim.bucketing import plan_buckets
    from ddpsim.common.files import json_text
    from ddpsim.simulation.jobs.torch_line import torch_line
    from ddpsim.workload.files import load_workload

    refuse_beside_plan(plan, job)
    check_destination(out, as_json=output.as_json)
    model = load_workload(workload)
    chosen = (
        read_plan(plan, model.parameters)
        or job.aligned_plan(model.parameters)
        or plan_buckets(model.parameters, job.caps, job.assignment_in_force, model.arrival_order())
    )
    chosen = replace(chosen, call=torch_line(job, chosen, [model]))
    if out:
        deliver(out, json_text(chosen.document()))
    output.emit(_document(chosen), lambda: _text(chosen), aside=out == STANDARD_OUTPUT)


def _document(plan: BucketPlan) -> dict[str, object]:
    rows = [
        {"index": n, "size_bytes": b.size_bytes, "parameters": list(b.parameters), "limit_bytes": b.limit_bytes}
        for n, b in enumerate(plan.buckets)
    ]
    return {"buckets": rows, "plan_fingerprint": plan.fingerprint(), "torch": plan.torch}


def _text(plan: BucketPlan) -> str:
    from ddpsim.common.units import format_count, format_size

    rows = []
    for number, bucket in enumerate(plan.buckets):
        names = [plan.parameter_names[index] for index in bucket.parameters]
        span = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"
        if bucket.limit_bytes is None:
            closed = "end (no limit)"
        elif bucket.size_bytes >= bucket.limit_bytes:
            closed = f"limit {format_size(bucket.limit_bytes)}"
        else:
            closed = f"end, below {format_size(bucket.limit_bytes)}"
        rows.append(
            {
                "index": number,
                "parameters": len(names),
                "size": format_size(bucket.size_bytes),
                "closed by": closed,
                "from ... to": span,
            }
        )
    body = table_of("", rows).text()
    return f"{body}\n\n{format_count(len(rows), 'bucket')}, {format_size(plan.size_bytes)}\n{plan.torch}"
