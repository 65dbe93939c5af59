"""`ddpsim plan --search`: schemes, groups that share layers, micro-batches and caps, the best few that fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ddpsim.cli.keeping import make_resumable
from ddpsim.cli.predict import warn_of_pace
from ddpsim.cli.progress import Progress
from ddpsim.common.errors import InputError
from ddpsim.common.options.text import counts
from ddpsim.schedules.named import schemes_named
from ddpsim.simulation.jobs.pipeline import parse_pipelines

if TYPE_CHECKING:
    from ddpsim.cli.plan_arguments import PlanArguments
    from ddpsim.common.workers.requests import Workers
    from ddpsim.planning.candidates import SearchSpace
    from ddpsim.planning.rows import PlanReport
    from ddpsim.planning.search import SearchQuestion
    from ddpsim.planning.search_report import SearchReport
    from ddpsim.simulation.jobs.simulated import Options


def without_search(arguments: PlanArguments, options: Options) -> Options:
    """Return the options of a plan that is no search, with the ranks that share layers, and the stages.

    Raises:
        InputError: what a search alone takes.
    """
    tensor = [1] if arguments.tensor_parallel is None else counts(arguments.tensor_parallel, "tensor_parallel", "8")
    remedy = "add `search`, or give one"
    if len(tensor) > 1:
        raise InputError(f"{len(tensor)} values without `search`", place="tensor_parallel", remedy=remedy)
    pipelines = [None] if arguments.pipeline is None else parse_pipelines(arguments.pipeline, "pipeline")
    if len(pipelines) > 1:
        raise InputError(f"{len(pipelines)} values without `search`", place="pipeline", remedy=remedy)
    return replace(options, tensor_parallel=tensor[0], pipeline=pipelines[0])


def space_of(arguments: PlanArguments, options: Options) -> SearchSpace:
    """Return what the arguments of a search let it look over.

    Raises:
        InputError: what draws or reports one plan, or a value that cannot be read.
    """
    from ddpsim.planning.candidates import SearchSpace

    lists = {
        name: None if (text := getattr(arguments, name)) is None else counts(text, name, example)
        for name, example in (("tensor_parallel", "1,2,8"), ("micro_batch_size", "1,2,4"))
    }
    schemes = None if options.scheme == "ddp" else [options.scheme]
    return SearchSpace(
        schemes=schemes if arguments.schemes is None else schemes_named(arguments.schemes),
        tensor_parallel=lists["tensor_parallel"],
        pipelines=None if arguments.pipeline is None else parse_pipelines(arguments.pipeline, "pipeline"),
        micro_batch_sizes=lists["micro_batch_size"],
        global_batch_size=arguments.global_batch_size,
    )


def run_searches(
    questions: Sequence[SearchQuestion], by: Workers, out: str | None, write: Callable[[PlanReport, str], None]
) -> list[SearchReport]:
    """Return the reports of searches, each as it would be alone.

    Args:
        questions: of all of them.
        by: who simulates.
        out: where -o leads; `write` writes the plan of the best row of all there.

    Raises:
        InputError: as `ddpsim.planning.search.search`.
    """
    from ddpsim.planning.rows import PlanReport
    from ddpsim.planning.search import LEADERS

    with make_resumable(by, (LEADERS + 1) * len(questions), out) as done:
        reports = []
        for question in questions:
            ranked = question.rank(done.compute_more, Progress(f"candidates of {question}"))
            reports.append(ranked.report(partial(done.compute, what="plans", notes=lambda row: row.plan.best.notes)))
        if out is not None:
            best = tuple(each.best.plan for each in reports if each.best is not None)
            if not best:
                remedy = "allow more memory, or look over more nodes or schemes that shard more"
                raise InputError("nothing surely fits, so that no plan is written", place="out", remedy=remedy)
            write(PlanReport(best, reports[0].name), out)
    printed = set[str]()
    for report in reports:
        for row in (*report.rows, *report.may_not_fit):
            warn_of_pace(row.plan.chosen, printed)
    return reports


def document_of(reports: Mapping[str, Sequence[SearchReport]]) -> dict[str, object]:
    """Return the `plan` document of searches, by workload."""
    from ddpsim.planning.ranking import list_rankable

    best: dict[str, object] = {}
    for name, each in reports.items():
        fitting = [(report, report.best.plan.chosen) for report in each if report.best is not None]
        ranked = list_rankable(fitting, lambda of: of[1])
        fastest = max(ranked, key=lambda of: of[1].samples_per_s, default=None)
        best[name] = None if fastest is None else fastest[0].document()["best"]
    documents = [report.document() for each in reports.values() for report in each]
    return {
        "rows": [row for each in documents for row in each["rows"]],  # type: ignore[attr-defined]
        "may_not_fit": [row for each in documents for row in each["may_not_fit"]],  # type: ignore[attr-defined]
        "best": next(iter(best.values())) if len(best) == 1 else None,
        "best_by_workload": best,
        "searches": [each["search"] for each in documents],
    }
