"""`python -m ddpexec record-orders`: in which order gradients come, on several ranks, of a model that changes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver
from ddpsim.cli.expand import expand
from ddpsim.cli.output import JsonDocument, note, write


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOrdersArguments:
    """What `record-orders` is asked: a model, on how many ranks and for how long."""

    output: Annotated[Path, typer.Option("-o", "--output", help="Order trace, .json or .json.gz; - is stdout.")]
    model: Annotated[
        str,
        typer.Option(help="layer-drop, early-exit, experts, branches, tasks, checkpointing or dynamic-depth."),
    ]
    ranks: Annotated[int, typer.Option(min=1, help="Ranks, which take turns on this process.")] = 4
    steps: Annotated[int, typer.Option(min=1, help="Steps to record.")] = 300
    seed: Annotated[int, typer.Option(min=0, help="Of weights, batches and chances.")] = 0
    json_: JsonDocument = False


@expand
def record_orders(arguments: RecordOrdersArguments) -> None:
    """Train a small model whose order of gradients changes, and record when each gradient comes on each rank."""
    output = arguments.output
    check_destination(output, as_json=arguments.json_)
    from ddpexec.capturing.orders import record_orders
    from ddpsim.bucketing.order.agreement import order_report
    from ddpsim.bucketing.order.arrivals import Arrivals
    from ddpsim.common.files import json_text
    from ddpsim.workload.order_trace import order_trace_document

    trace = record_orders(arguments.model, ranks=arguments.ranks, steps=arguments.steps, seed=arguments.seed)
    deliver(output, json_text(order_trace_document(trace)))
    arrivals = [
        Arrivals(rank, k, order)
        for rank, workload in enumerate(trace.workloads)
        for k, order in enumerate(workload.used_orders())
    ]
    report = order_report(arrivals, len(trace.parameters))
    if arguments.json_:
        write(json.dumps({"name": trace.name, **report.document()}, indent=2))
        return
    say = note if str(output) == STANDARD_OUTPUT else write
    orders = len({arrival.order for arrival in arrivals})
    say(f"{trace.name}: {trace.iterations} steps of {trace.ranks} ranks in {orders} orders; written to {output}")
