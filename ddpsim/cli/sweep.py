"""`ddpsim sweep`: many configurations side by side, by as many workers as there are, kept as they are done."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from ddpsim.cli.output import Output, ms, note, note_once, percent, table
from ddpsim.cli.pictures import plot_option
from ddpsim.cli.predict import GpusPerNode
from ddpsim.cli.progress import Progress
from ddpsim.cli.reporting import ReportFile, check_report, deliver_report, made_by
from ddpsim.errors import InputError
from ddpsim.jobs.simulated import Options
from ddpsim.options.text import counts
from ddpsim.stopping import Stopped, stopping_on_signals
from ddpsim.units import counted
from ddpsim.workers.asked import Workers

if TYPE_CHECKING:
    from ddpsim.bucketing import BucketCaps
    from ddpsim.planning.sweep import Point, Question
    from ddpsim.workers.crew import Crew
    from ddpsim.workers.journal import Entry, Journal

_SHOWN = ("nodes", "world_size", "iteration_s", "exposed_comm_s", "overlap_ratio", "scaling_efficiency")
_HEADER = ("nodes", "ranks", "cap MiB", "iteration ms", "exposed ms", "hidden", "efficiency")


@expand
def sweep(
    workload: WorkloadName,
    topology: TopologyName,
    options: Options,
    given: ConstantOptions,
    by: Workers,
    output: Output,
    context: typer.Context,
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
    plot: Annotated[
        str | None, plot_option("Draw steps with their bands over bucket caps, a line a node count.")
    ] = None,
    report: ReportFile = None,
) -> None:
    """Predict every bucket cap at every node count.

    For example --nodes 1,2,4 --bucket-cap-mb 1,5,25,100. What is done before a sweep is stopped lies beside -o, and the
    same command goes on from there.
    """
    from ddpsim.planning.sweep import Question, points_of
    from ddpsim.topology.spec import load_topology
    from ddpsim.workload.files import load_workload

    check_destination(out, as_json=output.as_json)
    check_destination(plot)
    check_report(report, output, {"-o": out, "--plot": plot})
    refuse_beside_plan(plan, options, bucket_cap_mb)
    model = load_workload(workload)
    caps = swept_caps(bucket_cap_mb, options) or [options.caps]
    node_counts = [None] if nodes is None else counts(nodes, "nodes")
    question = Question(
        model, load_topology(topology), gpus_per_node, given.calibration_in_force(options.backend_for(model))
    )
    base = replace(options, caps=caps[0], plan=read_plan(plan, model.parameters))
    entries = _computed(question, points_of(node_counts, caps, base), by, out)
    labels = [_caps_text(cap, plan) for cap in caps] * len(node_counts)
    documents = [json.loads(entry.document) for entry in entries] if output.as_json or report or plot else []
    if plot:
        _draw(documents, labels, f"{model.name}\non {question.topology.name}", plot)
    deliver_report(
        report,
        lambda pages: pages.sweep_report(
            documents,
            labels,
            workload=model,
            machine=question.topology,
            backend=options.backend_for(model),
            calibration=question.calibration,
            notes=sorted({line for entry in entries for line in entry.notes}),
            command=made_by(context),
        ),
    )
    aside = STANDARD_OUTPUT in (out, report)
    output.emit({"rows": documents} if output.as_json else None, lambda: _text(entries, labels), aside=aside)


def _computed(question: Question, points: Sequence[Point], by: Workers, out: str | None) -> list[Entry]:
    """Return the entries by position, written where -o leads; of a sweep that ends early those that are done."""
    from ddpsim.workers.journal import journal_beside

    try:
        with stopping_on_signals(), by.crew(len(points)) as crew, journal_beside(out) as journal:
            keys = question.keys(points)
            _say_what_is_known(journal, keys)
            entries = _kept(question, points, keys, crew, journal, out)
            if out:
                deliver(out, _lines(entries))
    except Stopped as error:
        note(f"error: stopped by {error}")
        raise typer.Exit(128 + error.number) from None
    return entries


def _kept(
    question: Question,
    points: Sequence[Point],
    keys: Sequence[str],
    crew: Crew | None,
    journal: Journal | None,
    out: str | None,
) -> list[Entry]:
    """Return the entries by position; write what is done where that is not all."""
    from ddpsim.planning.sweep import sweep_entries

    found: dict[int, Entry] = {}
    show, told = Progress("predictions"), set[str]()

    def progress(done: int, total: int) -> None:
        if found:
            note_once(found[next(reversed(found))].notes, told)
        show(done, total)

    try:
        sweep_entries(question, points, found, keys=keys, crew=crew, journal=journal, progress=progress)
    except (InputError, Stopped):
        _write_part(found, len(points), out, journal)
        raise
    entries = [found[position] for position in range(len(points))]
    note_once((line for entry in entries for line in entry.notes), told)
    return entries


def _say_what_is_known(journal: Journal | None, keys: Sequence[str]) -> None:
    """Note what a journal of before spares this sweep."""
    if journal is not None and journal.entries:
        known = sum(key in journal.entries for key in keys)
        others = "" if known else ": what it holds is of another question, or another version"
        note(f"note: {known} of {len(keys)} predictions are in {journal.path} already{others}")


def _write_part(found: Mapping[int, Entry], total: int, out: str | None, journal: Journal | None) -> None:
    """Write what a sweep that ends early has done, in whole lines, and say how much that is."""
    kept = ""
    if out and found:
        deliver(out, _lines(found[position] for position in sorted(found)))
        goes_on = "" if journal is None else "; the same command goes on from there"
        kept = f"; {out} has them{goes_on}"
    note(f"note: {len(found)} of {total} predictions were done{kept}")


def _lines(entries: Iterable[Entry]) -> str:
    return "".join(f"{entry.document}\n" for entry in entries)


def _draw(documents: Sequence[Mapping[str, Any]], labels: Sequence[str], title: str, path: str) -> None:
    """Draw the step over the bucket cap, a line a node count."""
    from ddpsim.plots import plot_steps

    lines: dict[str, list[tuple[str, tuple[float, float, float]]]] = {}
    for document, label in zip(documents, labels, strict=True):
        step = tuple(float(document[key]) for key in ("iteration_s", "iteration_low_s", "iteration_high_s"))
        ranks = f"{counted(document['nodes'], 'node')}, {counted(document['world_size'], 'rank')}"
        lines.setdefault(ranks, []).append((label, (step[0], step[1], step[2])))
    plot_steps({title: lines}, path, "bucket cap (MiB)")
    note(f"wrote {path}")


def _caps_text(caps: BucketCaps, plan: str | None) -> str:
    """Return the caps in few words: `default`, `25`, `1,25`, or that a plan file has them."""
    if plan is not None:
        return "plan"
    given = next(iter(caps.torch_arguments().values()), "default")
    return ",".join(map(str, given)) if isinstance(given, list) else str(given)


def _text(entries: Sequence[Entry], labels: Sequence[str]) -> str:
    documents = [json.loads(entry.document) for entry in entries]
    accumulates = any(document["accumulate"] != 1 for document in documents)
    rows = []
    for document, label in zip(documents, labels, strict=True):
        nodes, ranks, iteration, exposed, overlap, efficiency = (document[key] for key in _SHOWN)
        step = [ms(document["step_s"])] if accumulates else []
        rows.append((nodes, ranks, label, ms(iteration), ms(exposed), percent(overlap), percent(efficiency), *step))
    return table((*_HEADER, *(["step ms"] if accumulates else [])), rows, left=())
