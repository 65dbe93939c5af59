"""`ddpsim order-bench`: what predictors and order policies are worth, net of what they cost."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.bucketing.order.consensus import Consensus
from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.destination import check_destination, plot_option
from ddpsim.cli.expand import expand
from ddpsim.cli.output import Output, note
from ddpsim.cli.progress import Progress
from ddpsim.common import shipped
from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.options.text import numbers
from ddpsim.common.tables.columns import text_of

if TYPE_CHECKING:
    from ddpsim.workload.order_trace import OrderTrace

PREDICTORS = ("last", "mean", "exponential", "branch", "context")
POLICIES = ("once", "drift:0.95:20", "drift:1:1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderBenchArguments:
    """Arguments of `order-bench`: traces of orders, predictors and policies, and the wire."""

    traces: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Order traces: a folder, a file, or shipped names. [all shipped ones]"),
    ] = None
    topology: Annotated[
        list[str] | None, typer.Option(metavar="T", help="Machine, a rank a node; may be repeated. [lab-flat]")
    ] = None
    predictor: Annotated[
        list[str] | None,
        typer.Option(metavar="P", help="Predictor, as --predictor of predict; may be repeated. [the built-in ones]"),
    ] = None
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="ORDER", help="As --order; may be repeated. [once, drift:0.95:20 and drift:1:1]"),
    ] = None
    consensus: Annotated[str, typer.Option(metavar="rank0|mean|slowest", help="Whose expectation wins.")] = "slowest"
    wire_over_backward: Annotated[
        str | None,
        typer.Option(
            metavar="0.5,1,2",
            help="Scale computation so that all messages together take so much of backward. [as recorded]",
        ),
    ] = "1"
    buckets: Annotated[int, typer.Option(min=1, metavar="N", help="About how many buckets a model has.")] = 8
    find_unused_parameters: Annotated[
        bool,
        typer.Option(
            "--find-unused-parameters", help="Of traces that miss no gradient too: torch then never rebuilds."
        ),
    ] = False
    steps: Annotated[int, typer.Option(min=5, metavar="N", help="Steps of each trace, from its first.")] = 100
    seed: Annotated[int, typer.Option(min=0, metavar="S", help="Of the intervals' draws.")] = 0
    plot: Annotated[
        str | None, plot_option("Draw what each saves over stock DDP, beside what were saved if the order were known.")
    ] = None


@expand
def order_bench(
    arguments: OrderBenchArguments,
    constants: ConstantOptions,
    output: Output,
) -> None:
    """Replay order traces under order policies, with what conferring and rebuilding cost.

    `order known` is a step whose next order is known in advance and whose buckets are rebuilt for nothing; stock DDP
    rebuilds once, or never where gradients are missing. Intervals are of 90 %. Kendall's tau compares the order
    expected with the one that came, unused parameters counted: 1 the same, 0 unrelated, -1 reversed.
    """
    check_destination(arguments.plot)
    from ddpsim.planning.order_bench import Bench, BenchMachine, bench
    from ddpsim.topology.spec import load_topology

    calibration = constants.calibration_in_force("gloo")
    ratios = (
        [None] if arguments.wire_over_backward is None else numbers(arguments.wire_over_backward, "wire_over_backward")
    )
    machines = [load_topology(name) for name in arguments.topology or ["lab-flat"]]
    bench_run = Bench(
        traces=[trace.first(arguments.steps) for trace in _traces(arguments.traces)],
        machines=[BenchMachine(each, ratio, calibration) for each in machines for ratio in ratios],
        predictors=arguments.predictor or PREDICTORS,
        policies=arguments.policy or POLICIES,
        consensus=_consensus(arguments.consensus),
        buckets=arguments.buckets,
        find_unused_parameters=arguments.find_unused_parameters,
        seed=arguments.seed,
    )
    documents = [row.document() for row in bench(bench_run, Progress("order-bench: rows"))]
    if arguments.plot:
        from ddpsim.report.plots import plot_gains

        plot_gains(documents, arguments.plot)
        note(f"wrote {arguments.plot}")
    output.emit({"rows": documents}, lambda: text_of("order-bench", documents, bands=True))


def _traces(text: str | None) -> list[OrderTrace]:
    """Return the traces in a folder or a file, or shipped ones by name, or all of these."""
    from ddpsim.workload.order_trace import load_order_trace

    if text is None:
        paths = [shipped.path("order trace", name) for name in shipped.names("order trace")]
    elif os.path.isdir(text):
        paths = sorted(path for path in Path(text).iterdir() if path.name.endswith((".json", ".json.gz")))
    elif os.path.exists(text):
        paths = [Path(text)]
    else:
        paths = [_find_shipped(name) for name in text.split(",")]
    if not paths:
        remedy = "record one with `python -m ddpexec record-orders`"
        raise InputError("holds no order trace", place=str(text), remedy=remedy)
    return [load_order_trace(path) for path in paths]


def _find_shipped(name: str) -> Path:
    known = shipped.names("order trace")
    if name not in known:
        raise UnknownNameError.among("order trace", name, known, place="traces")
    return shipped.path("order trace", name)


def _consensus(text: str) -> Consensus:
    from ddpsim.bucketing.order.consensus import CONSENSUS

    for known in CONSENSUS:
        if text == known:
            return known
    raise UnknownNameError.among("consensus", text, CONSENSUS, place="consensus")
