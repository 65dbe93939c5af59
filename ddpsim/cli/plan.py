"""`ddpsim plan`: the best buckets for each machine and node count, beside torch's default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.expand import expand
from ddpsim.cli.options import PlanOptions, WorkloadName
from ddpsim.cli.output import Output, ms, note, percent, progress, table
from ddpsim.cli.predict import PARTS, GpusPerNode, warn_of_pace
from ddpsim.cli.run_options import RunOptions
from ddpsim.cli.values import counts
from ddpsim.errors import InputError

if TYPE_CHECKING:
    from ddpsim.planner import PlanReport, PlanRow

_HEADER = (
    "machine", "pace", "nodes", "ranks", "buckets", "iteration ms", "forward", "backward", "exposed", "broadcast",
    "DDP", "optimizer", "hidden", "efficiency", "gain",
)  # fmt: skip


@expand
def plan(
    workload: WorkloadName,
    topology: Annotated[list[str], typer.Option(metavar="T", help="Machine or YAML file; may be repeated.")],
    buckets: PlanOptions,
    run: RunOptions,
    output: Output,
    nodes: Annotated[str | None, typer.Option(metavar="1,2,4", help="Node counts. [each machine's own]")] = None,
    gpus_per_node: GpusPerNode = None,
    out: Annotated[
        str | None, typer.Option("--out", "-o", metavar="FILE.json", help="Write the best row's plan file.")
    ] = None,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE.png", help="Draw latency over bucket cap, a panel a machine.")
    ] = None,
) -> None:
    """Find the bucket sizes that make an iteration shortest.

    Each row is set beside torch's default: the gain, and the line to paste.
    """
    from ddpsim.planner import plan as plan_all
    from ddpsim.topology.spec import load_topology
    from ddpsim.workload.files import load_workload

    model = load_workload(workload)
    if buckets.plan is not None or buckets.bucket_cap_mb_list is not None:
        flag = "--plan" if buckets.plan else "--bucket-cap-mb-list"
        remedy = "leave it out, or hold it against the default with `ddpsim predict`"
        raise InputError("a plan looks for the buckets itself", place=flag, remedy=remedy)
    report = plan_all(
        model,
        [load_topology(name) for name in topology],
        nodes=[None] if nodes is None else counts(nodes, "--nodes"),
        caps=buckets.sweep_caps(),
        options=run.options(replace(buckets, bucket_cap_mb=None, first_bucket_mb=None), model),
        gpus_per_node=gpus_per_node,
        calibration=run.calibration_in_force(),
        progress=lambda done, total: progress(done, total, f"plans of {model.name}"),
    )
    write_plan(report, out)
    if plot:
        draw(report, plot)
    for row in {row.best.topology.name: row for row in report.rows}.values():
        warn_of_pace(row.best)
    output.emit(report.document(), lambda: text(report))


def write_plan(report: PlanReport, path: str | None) -> None:
    """Write the plan file of the report's best row."""
    from ddpsim.files import json_text, write_whole

    if path:
        write_whole(path, json_text(report.best.chosen.plan.document()))


def draw(report: PlanReport, path: str) -> None:
    """Draw latency over bucket cap, a panel a machine and a line a node count."""
    from ddpsim.plots import plot_caps

    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    defaults: dict[str, dict[str, float]] = {}
    for row in report.rows:
        title = f"{row.best.workload.name} on {row.best.topology.name}"
        label = f"{row.best.nodes} node{'s' if row.best.nodes > 1 else ''}, {row.best.summary.world_size} ranks"
        panels.setdefault(title, {})[label] = list(row.sweep)
        defaults.setdefault(title, {})[label] = row.default.iteration_s
    plot_caps(panels, path, defaults)
    note(f"wrote {path}")


def text(report: PlanReport) -> str:
    """Return the report as a table and the lines to paste."""
    lines = [table(_HEADER, [_cells(row) for row in report.rows], left=(0, 1, 4)), ""]
    kept = [row for row in report.rows if row.keep_default]
    if kept:
        most = percent(max(row.gain for row in kept))
        lines += [f"keep torch's default on {_where(kept)} (at most {most} faster found):", f"    {kept[0].advice}"]
    changed = [row for row in report.rows if not row.keep_default]
    for advice in dict.fromkeys(row.advice for row in changed):
        lines += [f"on {_where([row for row in changed if row.advice == advice])}:", f"    {advice}"]
    best = report.best.chosen
    lines += ["", f"most samples a second: {best.topology.name}, {best.nodes} node(s)"]
    return "\n".join(lines)


def _where(rows: Sequence[PlanRow]) -> str:
    """Return machines and node counts in few words: `dgx-1v (1, 2 nodes), dgx-a100 (4 nodes)`."""
    machines: dict[str, list[str]] = {}
    for row in rows:
        machines.setdefault(row.best.topology.name, []).append(str(row.best.nodes))
    return ", ".join(
        f"{name} ({', '.join(counts)} node{'' if counts == ['1'] else 's'})" for name, counts in machines.items()
    )


def _cells(row: PlanRow) -> tuple[object, ...]:
    chosen, summary = row.chosen, row.chosen.summary
    pace = f"{chosen.workload.device}{', estimated' if chosen.workload.estimated else ''}"
    parts = [ms(getattr(summary, part)) for part in PARTS]
    shares = (percent(summary.overlap_ratio), percent(chosen.scaling_efficiency), percent(row.gain))
    ranks = (chosen.nodes, summary.world_size)
    return chosen.topology.name, pace, *ranks, _buckets(row), ms(chosen.iteration_s), *parts, *shares


def _buckets(row: PlanRow) -> str:
    """Return the caps in few words: `default`, `25`, or how many a list holds."""
    caps, count = row.chosen.options.caps, len(row.chosen.plan.buckets)
    if row.keep_default:
        return f"default ({count})"
    return f"{count} buckets" if caps.bucket_cap_mb is None else f"{caps.bucket_cap_mb:g} MiB ({count})"
