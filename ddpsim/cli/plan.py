"""`ddpsim plan`: the best buckets for each machine and node count, compared with torch's default.

`plan` branches three ways: a search over schemes, micro-batches and caps (`_search`), the best scheme
(`_choose_schemes`), or the best buckets, below both. `plan_text` words the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import typer

from ddpsim.bucketing import BucketCaps
from ddpsim.cli.constants import ConstantOptions
from ddpsim.cli.destination import (
    STANDARD_OUTPUT,
    check_outputs,
    command_line,
    deliver,
    deliver_report,
)
from ddpsim.cli.expand import expand
from ddpsim.cli.keeping import make_resumable
from ddpsim.cli.options import parse_swept_caps
from ddpsim.cli.output import TableOutput, note
from ddpsim.cli.plan_arguments import PlanArguments
from ddpsim.cli.plan_text import scheme_text, search_text, text
from ddpsim.cli.predict import warn_of_pace
from ddpsim.cli.search import document_of, run_searches, space_of, without_search
from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.text import counts
from ddpsim.common.workers.requests import Workers
from ddpsim.schedules.named import schemes_named
from ddpsim.simulation.jobs.simulated import Options

if TYPE_CHECKING:
    from ddpsim.planning.by_scheme import SchemeReport
    from ddpsim.planning.rows import PlanReport, PlanRow
    from ddpsim.planning.search_report import SearchReport
    from ddpsim.prediction.models import Model
    from ddpsim.simulation.job import Job
    from ddpsim.topology.graph import Topology


@expand
def plan(
    arguments: PlanArguments,
    options: Options,
    constants: ConstantOptions,
    by: Workers,
    output: TableOutput,
    context: typer.Context,
) -> None:
    """Find the bucket sizes that make an iteration shortest, with --schemes the scheme, or with --search all of it.

    Each row is set beside torch's default: the gain, and the line to paste; each scheme beside DDP. With -v the table
    has the parts of each step, and lines say where a gain comes from and what the bytes go by. What is done before a
    plan is stopped lies beside -o or --report, and the same command goes on from there.

    A search keeps the samples of a step, and says how many candidates do not fit, divide or keep up.
    """
    from ddpsim.common.units import parse_size
    from ddpsim.planning.best_buckets import best_buckets
    from ddpsim.planning.planner import places_of
    from ddpsim.planning.rows import PlanReport
    from ddpsim.prediction.answers import name_job
    from ddpsim.prediction.models import Model
    from ddpsim.topology.spec import load_topology

    check_outputs(output, out=arguments.out, plot=arguments.plot, report=arguments.report)
    if arguments.memory_limit is not None:
        options = replace(options, memory_limit_bytes=parse_size(arguments.memory_limit, "memory_limit"))
    models = _name_models([Model.of(name, options) for name in arguments.workload])
    refuse_excluded(arguments, "plan")
    node_counts = [None] if arguments.nodes is None else counts(arguments.nodes, "nodes")
    places = places_of([load_topology(name) for name in arguments.topology], node_counts)
    if arguments.search:
        searches = _search(arguments, models, places, options, constants, by)
        found = [report for each in searches.values() for report in each]
        output.emit_rows(
            document_of(searches) if output.as_json else None,
            "plan --search",
            lambda: [row for report in found for row in report.describe(*report.rows, *report.may_not_fit)],
            lambda: "\n\n".join(search_text(report, output.column_names) for report in found),
            aside=arguments.out == STANDARD_OUTPUT,
        )
        return
    options = without_search(arguments, options)
    if arguments.schemes is not None:
        refuse_excluded(arguments, "plan --schemes")
        jobs = _jobs_of(models, places, arguments.gpus_per_node, options, constants)
        _emit_schemes(_choose_schemes(arguments.schemes, jobs, by), output)
        return
    _check(options, arguments.bucket_cap_mb, arguments.plan, arguments.out, len(models))
    caps = parse_swept_caps(arguments.bucket_cap_mb, options)
    # The caps are candidates of the search, not options of its jobs: their default is torch's.
    options = replace(options, caps=BucketCaps())
    jobs = _jobs_of(models, places, arguments.gpus_per_node, options, constants)
    every = [job for each in jobs.values() for job in each]
    with make_resumable(by, len(every), arguments.out, arguments.report) as done:
        find = partial(best_buckets, caps=caps)
        # One computation of all workloads' rows, so that the pool never idles between them; then cut by workload.
        rows = iter(done.compute(find, every, name_job, what="plans", notes=lambda row: row.best.notes))
        reports = [PlanReport(tuple(islice(rows, len(each))), name) for name, each in jobs.items()]
        if arguments.out is not None:
            write_plan(reports[0], arguments.out)
    if arguments.plot:
        draw([row for each in reports for row in each.rows], arguments.plot)
    deliver_report(
        arguments.report,
        lambda pages: pages.plan_report(
            reports,
            calibration=constants.calibration_in_force(),
            notes=sorted(done.notes_printed),
            command=command_line(context),
            columns=output.column_names,
        ),
    )
    output.emit_rows(
        _document(reports) if output.as_json else None,
        "plan",
        lambda: [row.describe() for report in reports for row in report.rows],
        lambda: _all(reports, details=output.verbose, columns=output.column_names),
        aside=STANDARD_OUTPUT in (arguments.out, arguments.report),
    )


def _search(
    arguments: PlanArguments,
    models: Mapping[str, Model],
    places: Sequence[tuple[Topology, int | None]],
    options: Options,
    constants: ConstantOptions,
    by: Workers,
) -> dict[str, list[SearchReport]]:
    """Return the reports of the search by workload, one for each machine and node count."""
    from ddpsim.planning.search import SearchQuestion

    _check(options, arguments.bucket_cap_mb, arguments.plan, arguments.out, len(models))
    space, caps = space_of(arguments, options), parse_swept_caps(arguments.bucket_cap_mb, options)
    # The caps are candidates of the search, not options of its jobs: their default is torch's.
    options = replace(options, caps=BucketCaps())
    questions = [
        SearchQuestion(
            model,
            machine,
            count,
            options=options,
            space=space,
            caps=caps,
            gpus_per_node=arguments.gpus_per_node,
            calibration=constants.calibration_in_force(options.on(model.source, machine).backend_for(model.source)),
        )
        for model in models.values()
        for machine, count in places
    ]
    found = run_searches(questions, by, arguments.out, write_plan)
    each = len(found) // len(models)
    return {name: found[n * each : (n + 1) * each] for n, name in enumerate(models)}


def _name_models(models: Sequence[Model]) -> dict[str, Model]:
    """Return each model by its workload's name, or as the user named it where several share one: `resnet50@H200`."""
    names = [model.source.name for model in models]
    return {model.name if names.count(name) > 1 else name: model for name, model in zip(names, models, strict=True)}


def _jobs_of(
    models: Mapping[str, Model],
    places: Sequence[tuple[Topology, int | None]],
    gpus_per_node: int | None,
    options: Options,
    constants: ConstantOptions,
) -> dict[str, list[Job]]:
    """Return by workload its job at each place, with the constants in force at the first."""
    from ddpsim.planning.planner import jobs_of

    found = {}
    for name, model in models.items():
        backend = options.on(model.source, places[0][0]).backend_for(model.source)
        found[name] = jobs_of(model, places, options, gpus_per_node, constants.calibration_in_force(backend))
    return found


def _choose_schemes(schemes: str, jobs: Mapping[str, Sequence[Job]], by: Workers) -> dict[str, SchemeReport]:
    """Return by workload which of the schemes is best where."""
    from ddpsim.planning.by_scheme import SchemeReport, choose_scheme
    from ddpsim.prediction.answers import name_job

    choose, found = partial(choose_scheme, schemes=schemes_named(schemes)), {}
    with make_resumable(by, sum(map(len, jobs.values()))) as done:
        for name, each in jobs.items():
            found[name] = SchemeReport(tuple(done.compute(choose, each, name_job, what=f"schemes for {name}")))
    return found


def _emit_schemes(reports: Mapping[str, SchemeReport], output: TableOutput) -> None:
    """Print the reports, by workload."""
    printed = set[str]()
    for report in reports.values():
        for choice in report.choices:
            warn_of_pace(choice.best.prediction, printed)
    documents = {name: report.document() for name, report in reports.items()}
    rows = [row for each in documents.values() for row in each["rows"]]  # type: ignore[attr-defined]
    best = {name: each["best"] for name, each in documents.items()}
    document = {"rows": rows, "best": next(iter(best.values())) if len(best) == 1 else None, "best_by_workload": best}
    shown = [
        (f"{name}\n" if len(reports) > 1 else "") + scheme_text(report, output.column_names)
        for name, report in reports.items()
    ]
    output.emit_rows(
        document,
        "plan --schemes",
        lambda: [row.describe() for report in reports.values() for row in report.rows],
        lambda: "\n\n".join(shown),
    )


def _check(options: Options, bucket_cap_mb: str | None, plan: str | None, out: str | None, workloads: int) -> None:
    """Refuse what leaves a plan nothing to look for, or says nothing to it."""
    if plan is not None or options.caps.bucket_cap_mb_list is not None:
        remedy = "leave it out, or hold it against the default with `ddpsim predict`"
        place = "plan" if plan else "bucket_cap_mb_list"
        raise InputError("a plan looks for the buckets itself", place=place, remedy=remedy)
    refuse_excluded(options.caps, "plan --bucket-cap-mb", beside={"bucket_cap_mb": bucket_cap_mb})
    if out and workloads > 1:
        what = f"one file for the plans of {workloads} workloads"
        raise InputError(what, place="out", remedy="plan one workload at a time, or leave it out")


def _document(reports: Sequence[PlanReport]) -> dict[str, object]:
    """Return the `plan` document; samples of different models do not compare, so that of several none is best."""
    rows = [row for report in reports for row in report.document()["rows"]]  # type: ignore[attr-defined]
    best = {report.name: report.document()["best"] for report in reports}
    return {"rows": rows, "best": None if len(reports) > 1 else best[reports[0].name], "best_by_workload": best}


def _all(reports: Sequence[PlanReport], *, details: bool, columns: Sequence[str]) -> str:
    texts = [text(report, details=details, columns=columns) for report in reports]
    if len(reports) == 1:
        return texts[0]
    return "\n\n".join(f"{report.name}\n{each}" for report, each in zip(reports, texts, strict=True))


def write_plan(report: PlanReport, path: str) -> None:
    """Write the plan file of the report's best row."""
    from ddpsim.common.files import json_text

    deliver(path, json_text(report.written.chosen.plan.document()))


def draw(rows: Sequence[PlanRow], path: str) -> None:
    """Draw latency over bucket cap, a panel a workload and machine, a line a node count."""
    from ddpsim.report.cap_curves import charts_of
    from ddpsim.report.plots import PictureLayout, save_charts

    save_charts(charts_of(rows), path, PictureLayout(share_y=True))
    note(f"wrote {path}")
