"""`ddpsim plan`: the best buckets for each machine and node count, beside torch's default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.bucketing import BucketCaps
from ddpsim.cli.breakdown import step_line
from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.destination import STANDARD_OUTPUT, check_destination, deliver
from ddpsim.cli.expand import expand
from ddpsim.cli.options import PlanFile, Schemes, SweptCaps, swept_caps
from ddpsim.cli.output import Output, ms, note, percent, table
from ddpsim.cli.pictures import plot_option
from ddpsim.cli.predict import GpusPerNode, largest_doubt, warn_of_pace
from ddpsim.cli.progress import Progress
from ddpsim.cli.reporting import ReportFile, check_report, deliver_report, made_by
from ddpsim.errors import InputError
from ddpsim.jobs.simulated import Options
from ddpsim.options.text import counts
from ddpsim.schedules.named import schemes_named
from ddpsim.units import GIB, counted
from ddpsim.workers.asked import Workers

if TYPE_CHECKING:
    from ddpsim.planning.by_scheme import SchemeReport
    from ddpsim.planning.rows import PlanReport, PlanRow

_HEADER = (
    "machine", "pace", "nodes", "ranks", "buckets", "iteration ms", "80 % band", "forward", "backward", "exposed",
    "broadcast", "DDP", "optimizer", "hidden", "efficiency", "gain", "memory GiB",
)  # fmt: skip


@expand
def plan(
    workload: Annotated[list[str], typer.Option(metavar="W", help="Workload or file; may be repeated.")],
    topology: Annotated[list[str], typer.Option(metavar="T", help="Machine or YAML file; may be repeated.")],
    options: Options,
    given: ConstantOptions,
    by: Workers,
    output: Output,
    context: typer.Context,
    nodes: Annotated[str | None, typer.Option(metavar="1,2,4", help="Node counts. [each machine's own]")] = None,
    gpus_per_node: GpusPerNode = None,
    bucket_cap_mb: SweptCaps = None,
    plan: PlanFile = None,
    schemes: Schemes = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out", "-o", metavar="FILE.json", help="Write the best row's plan, of one workload; - is standard output."
        ),
    ] = None,
    plot: Annotated[str | None, plot_option("Draw latency over bucket cap, a panel a machine.")] = None,
    report: ReportFile = None,
) -> None:
    """Find the bucket sizes that make an iteration shortest, or with --schemes the scheme.

    Each row is set beside torch's default: the gain, and the line to paste; each scheme beside DDP.
    """
    from ddpsim.planning.by_scheme import choose
    from ddpsim.planning.planner import plan as plan_all
    from ddpsim.topology.spec import load_topology
    from ddpsim.workload.files import load_workload

    check_destination(out, as_json=output.as_json)
    check_destination(plot)
    check_report(report, output, {"-o": out, "--plot": plot})
    models = [load_workload(name) for name in workload]
    if schemes is not None:
        _refuse_beside_schemes(
            {"out": out, "plot": plot, "report": report, "bucket_cap_mb": bucket_cap_mb, "plan": plan}
        )
        listed = schemes_named(schemes)
        machines = [load_topology(name) for name in topology]
        cells = [None] if nodes is None else counts(nodes, "nodes")
        with by.crew(len(models) * len(machines) * len(cells)) as crew:
            chosen = {
                model.name: choose(
                    model,
                    machines,
                    listed,
                    nodes=cells,
                    options=options,
                    gpus_per_node=gpus_per_node,
                    calibration=given.calibration_in_force(options.backend_for(model)),
                    progress=Progress(f"schemes for {model.name}"),
                    executor=crew,
                )
                for model in models
            }
        _emit_schemes(chosen, output)
        return
    _check(options, bucket_cap_mb, plan, out, len(models))
    caps = swept_caps(bucket_cap_mb, options)
    options = replace(options, caps=BucketCaps())
    machines = [load_topology(name) for name in topology]
    node_counts = [None] if nodes is None else counts(nodes, "nodes")
    reports, told = [], set[str]()
    with by.crew(len(models) * len(machines) * len(node_counts)) as crew:
        for model in models:
            found = plan_all(
                model,
                machines,
                nodes=node_counts,
                caps=caps,
                options=options,
                gpus_per_node=gpus_per_node,
                calibration=given.calibration_in_force(options.backend_for(model)),
                progress=Progress(f"plans of {model.name}"),
                executor=crew,
            )
            for row in found.rows:
                warn_of_pace(row.best, told)
            reports.append(found)
    write_plan(reports[0], out)
    if plot:
        draw([row for report in reports for row in report.rows], plot)
    deliver_report(
        report,
        lambda pages: pages.plan_report(
            reports, calibration=given.calibration_in_force(), notes=sorted(told), command=made_by(context)
        ),
    )
    output.emit(_document(reports), lambda: _all(reports), aside=STANDARD_OUTPUT in (out, report))


def _refuse_beside_schemes(others: Mapping[str, str | None]) -> None:
    for name, given in others.items():
        if given is not None:
            remedy = "leave one out; `ddpsim compare` draws and reports schemes"
            raise InputError(f"`schemes` and `{name}` are both given", place="schemes", remedy=remedy)


def _emit_schemes(reports: Mapping[str, SchemeReport], output: Output) -> None:
    """Print the reports, by workload."""
    from ddpsim.cli.scheme_text import text as scheme_text

    told = set[str]()
    for report in reports.values():
        for choice in report.choices:
            warn_of_pace(choice.best.prediction, told)
    documents = {name: report.document() for name, report in reports.items()}
    rows = [row for each in documents.values() for row in each["rows"]]  # type: ignore[attr-defined]
    best = {name: each["best"] for name, each in documents.items()}
    document = {"rows": rows, "best": next(iter(best.values())) if len(best) == 1 else None, "best_by_workload": best}
    shown = [
        f"{name}\n{scheme_text(report)}" if len(reports) > 1 else scheme_text(report)
        for name, report in reports.items()
    ]
    output.emit(document, lambda: "\n\n".join(shown))


def _check(options: Options, bucket_cap_mb: str | None, plan: str | None, out: str | None, workloads: int) -> None:
    """Refuse what leaves a plan nothing to look for, or says nothing to it."""
    if plan is not None or options.caps.bucket_cap_mb_list is not None:
        remedy = "leave it out, or hold it against the default with `ddpsim predict`"
        place = "plan" if plan else "bucket_cap_mb_list"
        raise InputError("a plan looks for the buckets itself", place=place, remedy=remedy)
    if options.caps.first_bucket_mb is not None and bucket_cap_mb is None:
        what, remedy = "says nothing without `bucket_cap_mb`", "add e.g. `bucket_cap_mb=5,25`, or leave it out"
        raise InputError(what, place="first_bucket_mb", remedy=remedy)
    if out and workloads > 1:
        what = f"one file for the plans of {workloads} workloads"
        raise InputError(what, place="out", remedy="plan one workload at a time, or leave it out")


def _document(reports: Sequence[PlanReport]) -> dict[str, object]:
    """Return the `plan` document; samples of different models do not compare, so that of several none is best."""
    rows = [row for report in reports for row in report.document()["rows"]]  # type: ignore[attr-defined]
    best = {report.best.chosen.workload.name: report.best.document() for report in reports}
    return {"rows": rows, "best": None if len(reports) > 1 else reports[0].best.document(), "best_by_workload": best}


def _all(reports: Sequence[PlanReport]) -> str:
    if len(reports) == 1:
        return text(reports[0])
    return "\n\n".join(f"{report.best.chosen.workload.name}\n{text(report)}" for report in reports)


def write_plan(report: PlanReport, path: str | None) -> None:
    """Write the plan file of the report's best row."""
    from ddpsim.files import json_text

    if path:
        deliver(path, json_text(report.best.chosen.plan.document()))


def draw(rows: Sequence[PlanRow], path: str) -> None:
    """Draw latency over bucket cap, a panel a workload and machine, a line a node count."""
    from ddpsim.plots import CapCurve, plot_caps

    panels: dict[str, dict[str, CapCurve]] = {}
    for row in rows:
        chosen = row.chosen
        label = f"{counted(chosen.nodes, 'node')}, {counted(chosen.summary.world_size, 'rank')}"
        curve = CapCurve(row.sweep, row.default.iteration_s, (row.cap_mb, chosen.iteration_s))
        panels.setdefault(f"{chosen.workload.name}\non {chosen.topology.name}", {})[label] = curve
    plot_caps(panels, path)
    note(f"wrote {path}")


def text(report: PlanReport) -> str:
    """Return the report as a table and the lines to paste."""

    lines = [table(_HEADER, [_cells(row) for row in report.rows], left=(0, 1, 4)), ""]
    for row in report.rows:
        steps = step_line(row.chosen.options, row.chosen.iteration_s)
        lines += [f"{_where([row])}: {line}" for line in steps]
    kept = [row for row in report.rows if row.keep_default]
    if kept:
        most = max(kept, key=lambda row: row.most)
        found = f"at most {100 * most.most:.1f} ± {50 * (most.gain_high - most.gain_low):.1f} % faster found"
        lines += [f"keep torch's default on {_where(kept)} ({found}):", f"    {kept[0].advice}"]
    changed = [row for row in report.rows if not row.keep_default]
    for advice in dict.fromkeys(row.advice for row in changed):
        lines += [f"on {_where([row for row in changed if row.advice == advice])}:", f"    {advice}"]
    lines += [_why(row) for row in changed]
    if unsure := [row for row in changed if row.rests_on_priors]:
        lines += ["", *_priors(unsure)]
    lines += [*_hidden(changed), "", *_doubts(report.rows), *_transports(report.rows)]
    best = report.best.chosen
    unfit = "" if report.best.fits is not False else ", which does NOT fit its GPUs, as nothing here does"
    lines += ["", f"most samples a second: {best.topology.name}, {counted(best.nodes, 'node')}{unfit}"]
    return "\n".join(lines)


def _why(row: PlanRow) -> str:
    """Return where the plan of a row saves its gain: the parts that are worth a tenth of it, the largest first."""
    from ddpsim.planning.savings import WHERE
    from ddpsim.units import format_time

    whole_s = row.default.iteration_s - row.best.iteration_s
    parts = [each for each in row.savings if abs(each.seconds) >= _TENTH * whole_s]
    said = (f"{'loses ' if p.seconds < 0 else ''}{format_time(abs(p.seconds))} of {WHERE[p.where]}" for p in parts)
    return f"saves {format_time(whole_s)} on {_where([row])}: {', '.join(said)}"


_TENTH = 0.1
"""Share of a saving from which a part of it is told; chosen by hand."""


def _doubts(rows: Sequence[PlanRow]) -> list[str]:
    """Return what weighs most in the bands, where, and the measurement that would narrow them."""
    said: dict[str, list[PlanRow]] = {}
    for row in rows:
        for line in largest_doubt(row.chosen):
            said.setdefault(line.partition(":")[2].partition(": band")[0].strip(), []).append(row)
    return [f"most in doubt on {_where(found)}: {what}" for what, found in said.items()]


def _transports(rows: Sequence[PlanRow]) -> list[str]:
    """Return what each machine's bytes go by, and what other choices would give."""
    said: dict[str, list[PlanRow]] = {}
    for row in rows:
        for line in [] if (taken := row.chosen.transports) is None else taken.lines():
            said.setdefault(line, []).append(row)
    return [f"on {_where(found)}: {line}" for line, found in said.items()]


def _hidden(rows: Sequence[PlanRow]) -> list[str]:
    """Return how much of the largest gain is there because communication beside computation has a price."""
    if not rows:
        return []
    most = max(rows, key=lambda row: row.gain)
    part, whole = (f"{100 * abs(share):.1f} %" for share in (most.gain_from_hidden_comm, most.gain))
    if most.gain_from_hidden_comm < 0:
        free = "if communication cost computation nothing"
        return [f"the gain of {whole} on {_where([most])} would be {part} more {free}"]
    return [f"of the gain of {whole} on {_where([most])}, {part} rests on what communication costs computation"]


def _priors(rows: Sequence[PlanRow]) -> list[str]:
    """Return what a gain on a step that the host holds up rests on, where that was not measured."""
    from ddpsim.units import format_time

    models = dict.fromkeys(row.chosen.workload.name for row in rows if row.chosen.workload.estimated)
    priors = {constant.name: constant for row in rows for constant in row.priors}
    costs = [format_time(pick(row.host_cost_s for row in rows)) for pick in (min, max)]
    cost = " to ".join(dict.fromkeys(costs))
    lines = [f"host-bound on {_where(rows)}: launching costs {cost} of the step, and the gain rests on priors:"]
    if models:
        lines.append(f"    the launch cost of an operator in {', '.join(models)}: estimated")
        lines.append("      measure it on such a machine: `python -m ddpexec capture`, or `ddpsim workload import`")
    if priors:
        named = ", ".join(f"{constant.name} {format_time(constant.value)}" for constant in priors.values())
        lines.append(f"    {named}")
        lines.append("      measure them: `torchrun ... -m ddpexec microbench`, `ddpsim calibrate`, then --calibration")
    return lines


def _where(rows: Sequence[PlanRow]) -> str:
    """Return machines and node counts in few words: `dgx-1v (1, 2 nodes), dgx-a100 (4 nodes)`."""
    machines: dict[str, list[str]] = {}
    for row in rows:
        machines.setdefault(row.best.topology.name, []).append(str(row.best.nodes))
    return ", ".join(
        f"{name} ({', '.join(counts)} node{'' if counts == ['1'] else 's'})" for name, counts in machines.items()
    )


def _cells(row: PlanRow) -> tuple[object, ...]:
    from ddpsim.trace.metrics import PARTS

    chosen, summary = row.chosen, row.chosen.summary
    pace = f"{chosen.workload.device_label}{', estimated' if chosen.workload.estimated else ''}"
    parts = [ms(getattr(summary, part)) for part in PARTS]
    shares = (percent(summary.overlap_ratio), percent(chosen.scaling_efficiency), percent(row.gain))
    ranks = (chosen.nodes, summary.world_size)
    band = f"{ms(chosen.low_s)} to {ms(chosen.high_s)}"
    timed = (ms(chosen.iteration_s), band, *parts, *shares)
    return chosen.topology.name, pace, *ranks, _buckets(row), *timed, _memory(row)


def _memory(row: PlanRow) -> str:
    """Return what a rank needs and its GPU has, and whether it fits where that is in doubt."""
    memory = row.chosen.memory
    if memory is None:
        return ""
    known = memory.activations_bytes is not None
    size = f"{'' if known else '> '}{memory.step_bytes / GIB:.1f}"
    if memory.capacity_bytes is None:
        return size
    mark = {False: " does NOT fit", None: " may not fit" if known else ""}.get(memory.fits, "")
    return f"{size} of {memory.capacity_bytes / GIB:.0f}{mark}"


def _buckets(row: PlanRow) -> str:
    """Return the caps in few words: `default`, `25`, or how many a list holds."""
    caps, count = row.chosen.options.caps, len(row.chosen.plan.buckets)
    if row.keep_default:
        return f"default ({count})"
    return counted(count, "bucket") if caps.bucket_cap_mb is None else f"{caps.bucket_cap_mb:g} MiB ({count})"
