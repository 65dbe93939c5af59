"""`torchrun ... -m ddpexec order-run`: what order policies gain over stock torch, measured."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.expand import expand
from ddpsim.cli.output import JsonDocument, note_all, write
from ddpsim.common.errors import InputError
from ddpsim.common.tables import table_of

if TYPE_CHECKING:
    from ddpexec.running.orders import Arm

_ARMS = ("never,last", "drift:0.95:20,mean", "drift:1:1,mean", "drift:1:1,context", "oracle")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRunArguments:
    """What `order run` is asked: a trace of orders, arms to try, and the wire."""

    trace: Annotated[str, typer.Option(metavar="FILE", help="Order trace, a file or a shipped name.")]
    topology: Annotated[
        str, typer.Option(metavar="T", help="The machine that it runs on, by which computation is scaled.")
    ] = "lab-flat"
    wire_over_backward: Annotated[
        float, typer.Option(metavar="W", help="What all messages together take over what backward does.")
    ] = 1.0
    arm: Annotated[
        list[str] | None,
        typer.Option(metavar="POLICY,PREDICTOR", help="Beside torch: a policy and its predictor, or oracle; repeated."),
    ] = None
    buckets: Annotated[int, typer.Option(min=1, metavar="N", help="About how many buckets a model has.")] = 8
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of every arm, forth and back.")] = 3
    find_unused_parameters: Annotated[
        bool,
        typer.Option(
            "--find-unused-parameters", help="Of a trace that misses no gradient too: torch then never rebuilds."
        ),
    ] = False
    out: Annotated[Path | None, typer.Option("-o", "--out", help="JSON to write.")] = None
    json_: JsonDocument = False


@expand
def order_run(
    arguments: OrderRunArguments,
) -> None:
    """Replay an order trace with timed layers, in turns under stock torch and under order policies, for real.

    The oracle rebuilds before every step for what comes, and pays for the rebuild as any policy does.
    """
    from ddpexec.groups.launched import join_launched
    from ddpexec.running.orders import TORCH, Arm, measure_arms, run_orders
    from ddpexec.timing.stopwatch import gather_other_work
    from ddpsim.common import shipped
    from ddpsim.common.files import json_text, write_whole
    from ddpsim.common.other_work import ProcessorClock
    from ddpsim.planning.order_bench import BenchMachine, caps_for
    from ddpsim.simulation.jobs.job_options import JobOptions
    from ddpsim.topology.spec import load_topology
    from ddpsim.workload.order_trace import load_order_trace

    path = Path(arguments.trace) if os.path.exists(arguments.trace) else shipped.find("order trace", arguments.trace)
    recorded = load_order_trace(path)
    machine = BenchMachine(load_topology(arguments.topology), arguments.wire_over_backward)
    caps = caps_for(recorded, arguments.buckets)
    arms = [Arm(TORCH), *(_arm(text) for text in arguments.arm or _ARMS)]
    with join_launched("order-run", "gloo", "cpu") as rank:
        scale = machine.scale(recorded, caps)
        options = JobOptions(caps=caps, scale_compute=scale, find_unused_parameters=arguments.find_unused_parameters)
        clock = ProcessorClock()
        taken = run_orders(recorded, arms, rank.communicator, options, arguments.rounds)
        other = gather_other_work(clock, rank.communicator)
        if rank.communicator.rank != 0:
            return
        rows = [{"trace": recorded.name, "machine": machine.name, **row} for row in measure_arms(taken)]
    document: dict[str, object] = {"rows": rows}
    if other is not None:
        document |= other.document()
        note_all(other.notes())
    if arguments.out is not None:
        write_whole(arguments.out, json_text(document).encode())
    if arguments.json_:
        write(json.dumps(document, indent=2))
        return
    write(f"{recorded.name} on {machine.name}\n\n{table_of('order-run', rows).text()}")


def _arm(text: str) -> Arm:
    from ddpexec.running.orders import ORACLE, Arm
    from ddpsim.bucketing.order.predictors import predictor
    from ddpsim.bucketing.order.rebuild import rebuild

    policy, comma, chosen = text.partition(",")
    if text == ORACLE:
        return Arm(ORACLE)
    if not comma:
        raise InputError(f"{text!r} names no predictor", place="arm", remedy="write e.g. drift:1:1,mean, or oracle")
    rebuild(policy)
    predictor(chosen)
    return Arm(policy, chosen)
