"""`ddpsim predict`: one configuration in full.

`predict` checks the outputs, predicts, writes the trace, and prints; everything below words parts of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.breakdown import statistic, step_line
from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.expand import expand
from ddpsim.cli.first_text import format_first
from ddpsim.cli.options import (
    GpusPerNode,
    NodeCount,
    PlanFile,
    TopologyName,
    WorkloadName,
    read_plan,
    refuse_beside_plan,
)
from ddpsim.cli.output import Output, first_rows, note_once
from ddpsim.cli.progress import Progress
from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Section
from ddpsim.common.tables import break_line
from ddpsim.common.tables.cells import percent
from ddpsim.simulation.jobs.simulated import Options

if TYPE_CHECKING:
    from ddpsim.planning.bound import Bound
    from ddpsim.prediction.conditional_step import ConditionalStep, StepBeside
    from ddpsim.prediction.first import FirstIterations
    from ddpsim.prediction.path import CriticalPath, Sensitivity
    from ddpsim.prediction.prediction import Prediction
    from ddpsim.simulation.jobs.beside import JobBeside
    from ddpsim.trace.metrics import BucketSummary
    from ddpsim.trace.records import Trace
    from ddpsim.workload.layer_messages import ExpertParallel

_BUCKETS_SHOWN = 12
"""Rows of buckets in the text, `--json` has all; chosen by hand, for one screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictArguments:
    """Arguments of `predict` next to those of a job: its workload and machine, and what to write."""

    workload: WorkloadName
    topology: TopologyName
    nodes: NodeCount = None
    gpus_per_node: GpusPerNode = None
    plan: PlanFile = None
    trace: Annotated[str | None, typer.Option(metavar="DIR", help="Write the simulated trace."), Section.OUTPUT] = None
    beside: Annotated[
        str | None,
        typer.Option(
            metavar="JOB.yaml",
            help="Another job on the same fabric: its workload, nodes and options. Of a folder, a measured trace, with "
            "--trace: also DIR/beside.json.gz, a step of each for Perfetto.",
        ),
        Section.WHAT_IF,
    ] = None
    chakra: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write the step as Chakra execution traces, DIR/WORKLOAD.RANK.et."),
        Section.OUTPUT,
    ] = None
    first: Annotated[
        int | None,
        typer.Option(metavar="N", help="Also the construction and the first N iterations, until buckets are rebuilt."),
        Section.OUTPUT,
    ] = None


@expand
def predict(arguments: PredictArguments, options: Options, constants: ConstantOptions, output: Output) -> None:
    """Predict an iteration's latency, its breakdown and every bucket."""
    from ddpsim.common.files import check_writable_folder
    from ddpsim.planning.bound import bound_of
    from ddpsim.prediction.conditional_step import StepBeside, predict_other_reach, predict_slow_host
    from ddpsim.prediction.models import Model
    from ddpsim.prediction.predict import predict as predict_one
    from ddpsim.prediction.sensitivities import sensitivities_of
    from ddpsim.simulation.job import Job
    from ddpsim.topology.spec import load_topology

    trace, chakra, beside = arguments.trace, arguments.chakra, arguments.beside
    refuse_beside_plan(arguments.plan, options)
    for folder in (trace, chakra):
        if folder:
            check_writable_folder(folder)
    refuse_excluded(options, "predict --chakra", beside={"chakra": chakra})
    if chakra:
        from ddpsim.chakra.schema import check_installed

        check_installed()
    measures = beside is not None and Path(beside).is_dir()
    measured = _load_measured(beside, trace) if measures else None
    options = replace(options, beside=None if beside is None or measures else _job_beside(beside))
    first = arguments.first
    if first is not None:
        from ddpsim.prediction.first import check_first

        check_first(first, options)
    step, machine = Model.of(arguments.workload, options), load_topology(arguments.topology)
    model = step.on(machine, options=options)
    prediction = predict_one(
        Job(
            model,
            machine,
            arguments.nodes,
            arguments.gpus_per_node,
            replace(options, plan=read_plan(arguments.plan, model.parameters)),
            constants.calibration_in_force(options.on(model, machine).backend_for(model)),
        ),
        progress=Progress("iterations"),
    )
    if trace:
        from ddpsim.trace.json import write_trace

        write_trace(prediction.trace, trace)
        output.print_detail(f"wrote {trace}")
    if trace and measured is not None:
        _write_beside(prediction, measured, trace, output)
    if chakra:
        _write_chakra(prediction, chakra, output)
    warn_of_pace(prediction, set())
    path, helps = prediction.critical_path, sensitivities_of(prediction)
    bound = bound_of(prediction, prediction.calibration)
    second, shared = predict_other_reach(prediction), StepBeside.of(prediction)
    slow = predict_slow_host(prediction)
    begun = None if first is None else _predict_first(prediction, first)
    document = {
        **prediction.document(),
        **bound.document(),
        "otherwise": None if second is None else second.document(),
        "slow_host": None if slow is None else slow.document(),
        **({} if shared is None else {"beside": shared.document()}),
        **({} if begun is None else {"first": begun.document()}),
        **path.entries(),
        "sensitivities": [each.document() for each in helps],
    }
    beginning = [] if begun is None else [format_first(begun)]
    output.emit(
        document, lambda: "\n\n".join([*beginning, _text(prediction, bound, path, helps, (second, slow), shared)])
    )


def _predict_first(prediction: Prediction, count: int) -> FirstIterations:
    from ddpsim.prediction.first import predict_first_iterations

    return predict_first_iterations(prediction, count)


def _job_beside(path: str) -> JobBeside:
    from ddpsim.simulation.jobs.beside_file import job_beside

    return job_beside(path, "beside")


def _load_measured(beside: str | None, trace: str | None) -> Trace | None:
    """Return the measured trace that goes into one file with the predicted one."""
    if beside is None:
        return None
    if trace is None:
        raise InputError("`beside` is given without `trace`", place="beside", remedy="give `trace`, a folder")
    from ddpsim.trace.json import read_trace

    return read_trace(beside)


def _write_beside(prediction: Prediction, measured: Trace, folder: str, output: Output) -> None:
    from ddpsim.trace.json import write_beside

    path = Path(folder) / "beside.json.gz"
    write_beside(measured, prediction.trace, path)
    output.print_detail(f"wrote {path}")


def _write_chakra(prediction: Prediction, folder: str, output: Output) -> None:
    from ddpsim.chakra.writing import write_traces

    name = prediction.workload.name.replace("/", "-")
    files = write_traces(prediction.run.under(prediction.options), Path(folder), name)
    output.print_detail(f"wrote {files[0]}" + (f" to {files[-1].name}" if len(files) > 1 else ""))


def warn_of_pace(prediction: Prediction, printed: set[str]) -> None:
    """Note on standard error whose pace the workload keeps, where a node has another device or other ranks.

    Args:
        printed: notes printed before, which are not repeated; the new ones are added.
    """
    note_once(prediction.notes, printed)


def _text(
    prediction: Prediction,
    bound: Bound,
    path: CriticalPath,
    helps: Sequence[Sensitivity],
    cases: tuple[ConditionalStep | None, ConditionalStep | None],
    shared: StepBeside | None,
) -> str:
    from ddpsim.common.units import format_count, format_time
    from ddpsim.prediction.prediction import BUCKETS, PARTS

    summary, workload, tables = prediction.summary, prediction.workload, prediction.tables()
    origin = "estimated for" if workload.estimated else "measured on"
    other = ", which the machine does not have" if prediction.pace_kept else ""
    lines = [
        f"{workload.name} (compute times {origin} {workload.device_label}{other}) on {prediction.topology.name}: "
        f"{format_count(prediction.nodes, 'node')}, {format_count(summary.world_size, 'rank')}",
        "",
        *_times(prediction, cases),
        *([] if shared is None else [shared.text()]),
        *_apart(prediction),
        *_parts(prediction),
        *format_largest_doubt(prediction),
        tables[PARTS].text("  "),
        *format_hidden_cost(prediction),
        path.text(),
        *_correction(prediction),
        *map(break_line, prediction.codec_notes),
        *_format_binds(prediction, bound),
        *_format_helps(prediction, helps),
        "",
        f"one rank without DDP takes {format_time(prediction.options.accumulate * prediction.local_s)}, "
        f"scaling efficiency {percent(prediction.scaling_efficiency)}, "
        f"communication overlapped with computation {percent(summary.overlap_ratio) or '-'}",
        *([] if (memory := prediction.memory) is None else [f"peak memory of a rank: {memory.text()}"]),
        *([] if (taken := prediction.transports) is None else map(break_line, taken.lines())),
        "",
        *(["buckets of one micro-batch:"] if prediction.options.accumulate > 1 else []),
        first_rows(tables[BUCKETS], _BUCKETS_SHOWN),
    ]
    lines += [*_host_ahead(summary.buckets), "", prediction.plan.torch]
    return "\n".join(lines)


def _times(prediction: Prediction, cases: Sequence[ConditionalStep | None]) -> list[str]:
    """Return the lines on the step, the optimizer's where gradients are accumulated, and what it trains a second.

    Args:
        cases: what the step takes under other conditions, a line each under it.
    """
    from ddpsim.common.units import format_time

    tokens = "" if (rate := prediction.tokens_per_s) is None else f", {rate:,.0f} tokens/s"
    trained = f"trains     {prediction.samples_per_s:,.0f} samples/s{tokens}"
    steps = step_line(prediction.options, prediction.iteration_s)
    others = [f"{'':11}{_format_other(other)}" for other in cases if other is not None]
    if steps:
        return [f"{steps[0]}{_band(prediction)}", *others, trained]
    one = f"{format_time(prediction.iteration_s)}{statistic(prediction.summary)}{_band(prediction)}"
    return [f"iteration  {one}", *others, trained]


def _apart(prediction: Prediction) -> list[str]:
    """Return the line on ranks that go on without each other: their steps, and what else was measured."""
    from ddpsim.common.units import format_count, format_time
    from ddpsim.simulation.parameter_servers import describe_staleness

    if (steps := prediction.rank_steps_s) is None or not (remarks := prediction.remarks):
        return []
    least, most = (format_time(find(steps.values())) for find in (min, max))
    words = "; ".join(map(describe_staleness, remarks.values()))
    return [f"{format_count(len(steps), 'rank')} with steps of {least} to {most}; {words}"]


def _parts(prediction: Prediction) -> list[str]:
    """Return the lines on ranks that have parts of the model: what they send each other, over how many gradients go."""
    from ddpsim.common.units import format_count, format_size

    tensor, experts, cut = prediction.workload.tensor, prediction.workload.experts, prediction.options.cut
    if experts is not None:
        return [_experts(prediction, experts)]
    data = format_count(prediction.summary.world_size // prediction.options.ranks_a_copy, "rank")
    if cut.stages > 1:
        line = f"{cut.text(prediction.workload.boundary_bytes)}; gradients reduced over {data}"
        return [line, *([] if tensor is None else [f"layers split over {tensor.ranks} consecutive ranks"])]
    if tensor is None:
        return []
    sent = f"{format_count(len(tensor.messages), 'allreduce')} of {format_size(tensor.size_bytes)} in all"
    each = "a micro-batch" if prediction.options.accumulate > 1 else "a step"
    return [f"each layer split over {tensor.ranks} consecutive ranks, {sent} {each}; gradients reduced over {data}"]


def _experts(prediction: Prediction, experts: ExpertParallel) -> str:
    """Return the line on ranks that share experts."""
    from ddpsim.common.units import format_count, format_size

    ranks, data = prediction.summary.world_size, prediction.summary.world_size // experts.ranks
    sent = f"{format_count(len(experts.messages), 'all-to-all')} of {format_size(experts.size_bytes)} in all"
    each = "a micro-batch" if prediction.options.accumulate > 1 else "a step"
    over = f"gradients reduced over {format_count(ranks, 'rank')}, experts' over {format_count(data, 'rank')}"
    return break_line(f"experts spread over {experts.ranks} consecutive ranks, {sent} {each}; {over}")


def _band(prediction: Prediction) -> str:
    """Return the band of the step in words; nothing where nothing is in doubt."""
    from ddpsim.common.units import format_time

    _, *ends = prediction.step_s
    low, high = map(format_time, ends)
    return "" if low == high else f"  (10th to 90th percentile {low} to {high})"


def _format_other(other: ConditionalStep) -> str:
    """Return the step of another case in words."""
    from ddpsim.common.units import format_time

    step, low, high = map(format_time, other.step_s)
    return f"{step} ({low} to {high}) {other.condition}"


def format_largest_doubt(prediction: Prediction) -> list[str]:
    """Return the line on the doubt that weighs most: what would remove it, and the band before and after."""
    from ddpsim.prediction.doubts.join import without

    if not prediction.doubts:
        return []
    most, middle_s = prediction.doubts[0], prediction.iteration_s
    low_s, high_s = without(middle_s, prediction.doubts, most)
    now, then = (width / middle_s for width in (prediction.high_s - prediction.low_s, high_s - low_s))
    line = f"{most.name}; to reduce it: {most.remedy} (band from {now:.0%} to {then:.0%} of the step)"
    return [break_line(f"largest uncertainty: {line}".replace("%", " %"))]


def format_hidden_cost(prediction: Prediction) -> list[str]:
    """Return the line on what computing and communicating at once costs the step; none where it costs nothing."""
    cost_s = prediction.hidden_comm_cost_s
    if not cost_s:
        return []
    from ddpsim.common.units import format_time

    share = f"{cost_s / prediction.iteration_s:.1%}".replace("%", " %")
    prior = "" if prediction.are_measured("compute_slowdown", "communication_slowdown") else " (assumed, not measured)"
    cost = format_time(prediction.options.accumulate * cost_s)
    return [f"{cost} ({share}) of the step is slowdown of computation by communication that overlaps it{prior}"]


def _format_binds(prediction: Prediction, bound: Bound) -> list[str]:
    """Return the line on what the step is bound by: what it would take if that took no time."""
    from ddpsim.common.units import format_time
    from ddpsim.planning.bound import describe_bound, describe_resource

    def left(lost_s: float) -> str:
        return format_time(prediction.options.accumulate * (prediction.iteration_s - lost_s))

    binds = describe_bound(bound, prediction.workload)
    if bound.beside is None:
        return [f"bottleneck: {binds}; the step would take {left(bound.lost[bound.by])} if it took no time"]
    without = [
        f"{left(bound.lost[by])} if {describe_resource(by, prediction.workload)} took no time"
        for by in (bound.by, bound.beside)
    ]
    both = [] if bound.together_s is None else [f"{left(bound.together_s)} if neither did"]
    return [break_line(f"bottlenecks: {binds}; the step would take {', '.join([*without, *both])}")]


def _format_helps(prediction: Prediction, helps: Sequence[Sensitivity]) -> list[str]:
    """Return the table of what would help most; next to another job it is of the job by itself, as doubts are."""
    from ddpsim.prediction.path import format_helps_most

    where = ", on an otherwise idle network" if prediction.options.disturbed else ""
    return format_helps_most(helps, prediction.iteration_s, prediction.options.accumulate, where)


def _correction(prediction: Prediction) -> list[str]:
    """Return the line that says whether measured rows of exactly this machine correct its collectives."""
    if not prediction.correcting_rows:
        return []
    from ddpsim.common.units import format_count

    rows = format_count(prediction.correcting_rows, "measured row")
    ranks = format_count(prediction.summary.world_size, "rank")
    return [f"allreduce times corrected by {rows} of exactly this machine and {ranks}"]


def _host_ahead(buckets: Sequence[BucketSummary]) -> list[str]:
    """Return the line on launches before the device begins the iteration; none where there are none."""
    first_s = min((bucket.launched_s for bucket in buckets), default=0.0)
    if first_s >= 0:
        return []
    from ddpsim.common.units import format_time

    ahead = format_time(-first_s)
    return [
        f"negative times: the host launches up to {ahead} before the device begins the iteration (kernels queue up)"
    ]
