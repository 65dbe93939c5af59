"""`ddpsim predict` and `ddpsim sweep`: one configuration in full, or many side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.breakdown import breakdown
from ddpsim.cli.expand import expand
from ddpsim.cli.options import PlanOptions, TopologyName, WorkloadName
from ddpsim.cli.output import Output, ms, note, percent, progress, table
from ddpsim.cli.run_options import RunOptions
from ddpsim.cli.values import counts, topology_named

if TYPE_CHECKING:
    from ddpsim.bucketing import BucketCaps
    from ddpsim.prediction.predict import Prediction
    from ddpsim.trace.metrics import BucketSummary

GpusPerNode = Annotated[int | None, typer.Option(metavar="G", help="Use the first G GPUs of a node. [all]")]
_BUCKETS_SHOWN = 12


@expand
def predict(
    workload: WorkloadName,
    topology: TopologyName,
    plan: PlanOptions,
    run: RunOptions,
    output: Output,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="Nodes. [the machine's own]")] = None,
    gpus_per_node: GpusPerNode = None,
    trace: Annotated[str | None, typer.Option(metavar="DIR", help="Write the simulated trace.")] = None,
) -> None:
    """Predict an iteration's latency, its breakdown and every bucket."""
    from ddpsim.prediction.predict import predict as predict_one
    from ddpsim.workload.files import load_workload

    model = load_workload(workload)
    prediction = predict_one(
        model,
        topology_named(topology),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        options=run.options(plan, model),
        calibration=run.calibration_in_force(),
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
    plan: PlanOptions,
    run: RunOptions,
    output: Output,
    nodes: Annotated[str | None, typer.Option(metavar="1,2,4", help="Node counts. [the machine's own]")] = None,
    gpus_per_node: GpusPerNode = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE.jsonl", help="Write one predict document a line.")
    ] = None,
) -> None:
    """Predict every bucket cap at every node count.

    For example --nodes 1,2,4 --bucket-cap-mb 1,5,25,100.
    """
    from ddpsim.files import write_whole
    from ddpsim.planning.planner import sweep as sweep_all
    from ddpsim.workload.files import load_workload

    model = load_workload(workload)
    caps = plan.sweep_caps() or [plan.caps()]
    node_counts = [None] if nodes is None else counts(nodes, "--nodes")
    options = run.options(replace(plan, bucket_cap_mb=None, first_bucket_mb=None), model)
    predictions = sweep_all(
        model,
        topology_named(topology),
        nodes=node_counts,
        caps=caps,
        options=options,
        gpus_per_node=gpus_per_node,
        calibration=run.calibration_in_force(),
    )
    total = len(node_counts) * len(caps)
    documents, told = [], set[str]()
    for number, prediction in enumerate(predictions):
        warn_of_pace(prediction, told)
        progress(number + 1, total, "predictions")
        documents.append(prediction.document() | {"bucket_cap_mb": caps[number % len(caps)].bucket_cap_mb})
    if out:
        write_whole(out, "".join(json.dumps(document, allow_nan=False) + "\n" for document in documents))
    labels = [_caps_text(cap, plan) for cap in caps] * len(node_counts)
    output.emit({"rows": documents}, lambda: _sweep_text(documents, labels))


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
            f"{workload.name} keeps the pace of {workload.device}, {machine.name} has {', '.join(devices)}; "
            "take a workload of that device, or --scale-compute"
        )
    elif workload.timed:
        pace = workload.paced_by
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
    from ddpsim.units import format_size, format_time

    summary, workload = prediction.summary, prediction.workload
    origin = "estimated" if workload.estimated else "measured"
    lines = [
        f"{workload.name} ({origin}, pace of {workload.device}) on {prediction.topology.name}: "
        f"{prediction.nodes} node(s), {summary.world_size} ranks",
        "",
        f"iteration  {format_time(prediction.iteration_s)}{_band(prediction)}",
        breakdown(summary),
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
    if (compression := prediction.options.compression) != "none":
        lines.append(f'ddp.register_comm_hook(*ddpexec.compression.hook_for("{compression}"))')
    return "\n".join(lines)


def _band(prediction: Prediction) -> str:
    """Return the band in words; nothing where iterations are all alike and no calibration leaves anything open."""
    from ddpsim.units import format_time

    low, high = format_time(prediction.low_s), format_time(prediction.high_s)
    return "" if low == high else f"  (10th to 90th percentile {low} to {high})"


def _correction(prediction: Prediction) -> list[str]:
    """Return the line that says whether measured rows of exactly this machine correct its collectives."""
    if not prediction.correcting_rows:
        return []
    rows, ranks = prediction.correcting_rows, prediction.summary.world_size
    return [f"allreduce times corrected by {rows} measured rows of exactly this machine and {ranks} ranks"]


def _life(bucket: BucketSummary) -> tuple[float, ...]:
    return bucket.ready_s, bucket.launched_s, bucket.started_s, bucket.finished_s


def _caps_text(caps: BucketCaps, plan: PlanOptions) -> str:
    """Return the caps in few words: `default`, `25`, `1,25`, or that a plan file has them."""
    if plan.plan is not None:
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
