"""`ddpsim predict` and `ddpsim sweep`: one configuration in full, or many side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.breakdown import breakdown, statistic
from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver
from ddpsim.cli.expand import expand
from ddpsim.cli.options import (
    PlanFile,
    SweptCaps,
    TopologyName,
    WorkloadName,
    read_plan,
    refuse_beside_plan,
    swept_caps,
)
from ddpsim.cli.output import Output, ms, note, percent, table
from ddpsim.cli.progress import Progress
from ddpsim.cli.workers import processes
from ddpsim.errors import InputError
from ddpsim.jobs.simulated import Options
from ddpsim.options.text import counts
from ddpsim.stopping import Stopped, stopping_on_signals

if TYPE_CHECKING:
    from ddpsim.bucketing import BucketCaps
    from ddpsim.prediction.prediction import Prediction
    from ddpsim.trace.metrics import BucketSummary

GpusPerNode = Annotated[int | None, typer.Option(metavar="G", help="Use the first G GPUs of a node. [all]")]
_BUCKETS_SHOWN = 12
"""Rows of buckets in the text, `--json` has all; chosen by hand, for one screen."""


@expand
def predict(
    workload: WorkloadName,
    topology: TopologyName,
    options: Options,
    given: ConstantOptions,
    output: Output,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="Nodes. [the machine's own]")] = None,
    gpus_per_node: GpusPerNode = None,
    plan: PlanFile = None,
    trace: Annotated[str | None, typer.Option(metavar="DIR", help="Write the simulated trace.")] = None,
) -> None:
    """Predict an iteration's latency, its breakdown and every bucket."""
    from ddpsim.files import check_writable_folder
    from ddpsim.prediction.predict import predict as predict_one
    from ddpsim.topology.spec import load_topology
    from ddpsim.workload.files import load_workload

    refuse_beside_plan(plan, options)
    if trace:
        check_writable_folder(trace)
    model = load_workload(workload)
    prediction = predict_one(
        model,
        load_topology(topology),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        options=replace(options, plan=read_plan(plan, model.parameters)),
        calibration=given.calibration_in_force(options.backend_for(model)),
        progress=Progress("iterations"),
    )
    if trace:
        from ddpsim.trace.json import write_trace

        write_trace(prediction.trace, trace)
        output.detail(f"wrote {trace}")
    warn_of_pace(prediction, set())
    output.emit(prediction.document(), lambda: _text(prediction))


@expand
def sweep(
    workload: WorkloadName,
    topology: TopologyName,
    options: Options,
    given: ConstantOptions,
    output: Output,
    nodes: Annotated[str | None, typer.Option(metavar="1,2,4", help="Node counts. [the machine's own]")] = None,
    gpus_per_node: GpusPerNode = None,
    bucket_cap_mb: SweptCaps = None,
    plan: PlanFile = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="FILE.jsonl", help="Write one predict document a line; - is standard output."
        ),
    ] = None,
) -> None:
    """Predict every bucket cap at every node count.

    For example --nodes 1,2,4 --bucket-cap-mb 1,5,25,100.
    """
    from ddpsim.planning.planner import sweep as sweep_all
    from ddpsim.topology.spec import load_topology
    from ddpsim.workload.files import load_workload

    check_destination(out, as_json=output.as_json)
    refuse_beside_plan(plan, options, bucket_cap_mb)
    model = load_workload(workload)
    caps = swept_caps(bucket_cap_mb, options) or [options.caps]
    node_counts = [None] if nodes is None else counts(nodes, "nodes")
    total, told = len(node_counts) * len(caps), set[str]()
    documents: list[dict[str, object]] = []
    try:
        with stopping_on_signals(), processes(total) as executor:
            predictions = sweep_all(
                model,
                load_topology(topology),
                nodes=node_counts,
                caps=caps,
                options=replace(options, caps=caps[0], plan=read_plan(plan, model.parameters)),
                gpus_per_node=gpus_per_node,
                calibration=given.calibration_in_force(options.backend_for(model)),
                executor=executor,
                progress=Progress("predictions"),
            )
            for number, prediction in enumerate(predictions):
                warn_of_pace(prediction, told)
                documents.append(prediction.document() | {"bucket_cap_mb": caps[number % len(caps)].bucket_cap_mb})
    except (InputError, Stopped) as error:
        _keep(documents, total, out)
        if isinstance(error, Stopped):
            note(f"error: stopped by {error}")
            raise typer.Exit(128 + error.number) from None
        raise
    if out:
        deliver(out, _lines(documents))
    labels = [_caps_text(cap, plan) for cap in caps] * len(node_counts)
    output.emit({"rows": documents}, lambda: _sweep_text(documents, labels), aside=out == STANDARD_OUTPUT)


def _keep(documents: list[dict[str, object]], total: int, out: str | None) -> None:
    """Write what a sweep that ends early has done, in whole lines, and say how much that is."""
    if out and documents:
        deliver(out, _lines(documents))
    kept = f"; {out} has them" if out and documents else ""
    note(f"note: {len(documents)} of {total} predictions were done{kept}")


def _lines(documents: list[dict[str, object]]) -> str:
    return "".join(json.dumps(document, allow_nan=False) + "\n" for document in documents)


def warn_of_pace(prediction: Prediction, told: set[str]) -> None:
    """Note on standard error whose pace the workload keeps, where a node has another device or other ranks.

    Args:
        told: what was noted before, which is not repeated; it grows.
    """
    for line in _pace_notes(prediction):
        if line not in told:
            told.add(line)
            note(f"note: {line}")


def _pace_notes(prediction: Prediction) -> Iterator[str]:
    from ddpsim.units import format_bandwidth

    workload, machine = prediction.workload, prediction.topology
    if devices := prediction.other_devices:
        yield (
            f"{workload.name} keeps the pace of {workload.device_label}, {machine.name} has {', '.join(devices)}; "
            "take a workload of that device, or --scale-compute"
        )
    elif workload.timed:
        pace = workload.device
        yield f"{workload.name} keeps the pace of {pace} by layers that sleep, as `ddpexec run --workload` does"
    for name, value in prediction.assumed.items():
        yield (
            f"nobody gave the memory bandwidth of {workload.device}: {name} is assumed, {format_bandwidth(value)}; "
            "estimate for a GPU of the table (--gpu) or state it (--memory-bandwidth 1792GB/s ...), or measure it "
            "(`ddpexec microbench`, `ddpsim calibrate`, --calibration)"
        )
    if (memory := prediction.memory) is not None and memory.fits is False:
        yield f"{workload.name} does not fit the memory of {machine.name}'s GPUs: {memory.text()}"
    if prediction.ranks_differ:
        yield (
            f"{workload.name} was recorded by {workload.ranks} ranks at once on a machine, "
            f"{machine.name} has {prediction.placement.gpus_per_node} on a node; capture it with as many"
        )


def _text(prediction: Prediction) -> str:
    from ddpsim.units import counted, format_size, format_time

    summary, workload = prediction.summary, prediction.workload
    origin = "estimated" if workload.estimated else "measured"
    lines = [
        f"{workload.name} ({origin}, pace of {workload.device_label}) on {prediction.topology.name}: "
        f"{counted(prediction.nodes, 'node')}, {counted(summary.world_size, 'rank')}",
        "",
        f"iteration  {format_time(prediction.iteration_s)}{statistic(summary)}{_band(prediction)}",
        *largest_doubt(prediction),
        breakdown(summary),
        *hidden_cost(prediction),
        *_correction(prediction),
        "",
        f"one rank without DDP {format_time(prediction.local_s)}, "
        f"scaling efficiency {percent(prediction.scaling_efficiency)}, "
        f"communication hidden {percent(summary.overlap_ratio) or '-'}",
        *([] if (memory := prediction.memory) is None else [f"memory of a rank at the peak: {memory.text()}"]),
        "",
        table(
            ("bucket", "parameters", "size", "ready ms", "launched", "started", "finished"),
            [
                (b.index, len(b.parameters), format_size(b.size_bytes), *map(ms, _life(b)))
                for b in summary.buckets[:_BUCKETS_SHOWN]
            ],
            left=(2,),
        ),
    ]
    if len(summary.buckets) > _BUCKETS_SHOWN:
        lines.append(f"... {len(summary.buckets) - _BUCKETS_SHOWN} more; --json has all")
    lines += ["", prediction.plan.torch]
    return "\n".join(lines)


def _band(prediction: Prediction) -> str:
    """Return the band in words; nothing where nothing is in doubt."""
    from ddpsim.units import format_time

    low, high = format_time(prediction.low_s), format_time(prediction.high_s)
    return "" if low == high else f"  (10th to 90th percentile {low} to {high})"


def largest_doubt(prediction: Prediction) -> list[str]:
    """Return the line on the doubt that weighs most: what would remove it, and the band before and after."""
    from ddpsim.doubts.join import without

    if not prediction.doubts:
        return []
    most, middle_s = prediction.doubts[0], prediction.iteration_s
    low_s, high_s = without(middle_s, prediction.doubts, most)
    now, then = (width / middle_s for width in (prediction.high_s - prediction.low_s, high_s - low_s))
    return [f"most in doubt: {most.name}; {most.remedy}: band {now:.0%} to {then:.0%}".replace("%", " %")]


def hidden_cost(prediction: Prediction) -> list[str]:
    """Return the line on what computing and communicating at once costs the step; none where it costs nothing."""
    cost_s = prediction.hidden_comm_cost_s
    if not cost_s:
        return []
    from ddpsim.units import format_time

    share = f"{cost_s / prediction.iteration_s:.1%}".replace("%", " %")
    prior = "" if prediction.hidden_comm_known else ", by priors"
    return [f"of it {format_time(cost_s)} ({share}) is what communication beside computation costs both{prior}"]


def _correction(prediction: Prediction) -> list[str]:
    """Return the line that says whether measured rows of exactly this machine correct its collectives."""
    if not prediction.correcting_rows:
        return []
    from ddpsim.units import counted

    rows, ranks = counted(prediction.correcting_rows, "measured row"), counted(prediction.summary.world_size, "rank")
    return [f"allreduce times corrected by {rows} of exactly this machine and {ranks}"]


def _life(bucket: BucketSummary) -> tuple[float, ...]:
    return bucket.ready_s, bucket.launched_s, bucket.started_s, bucket.finished_s


def _caps_text(caps: BucketCaps, plan: str | None) -> str:
    """Return the caps in few words: `default`, `25`, `1,25`, or that a plan file has them."""
    if plan is not None:
        return "plan"
    given = next(iter(caps.torch_arguments().values()), "default")
    return ",".join(map(str, given)) if isinstance(given, list) else str(given)


def _sweep_text(documents: list[dict[str, object]], labels: list[str]) -> str:
    keys = ("nodes", "world_size", "iteration_s", "exposed_comm_s", "overlap_ratio", "scaling_efficiency")
    header = ("nodes", "ranks", "cap MiB", "iteration ms", "exposed ms", "hidden", "efficiency")
    rows = []
    for document, label in zip(documents, labels, strict=True):
        nodes, ranks, iteration, exposed, overlap, efficiency = (document[key] for key in keys)
        rows.append((nodes, ranks, label, ms(iteration), ms(exposed), percent(overlap), percent(efficiency)))  # type: ignore[arg-type]
    return table(header, rows, left=())
