"""`ddpsim explain`: from the traces of a running job to where its step goes, who is late, and what would change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from ddpsim.cli.destination import STANDARD_OUTPUT, ReportFile, check_outputs, command_line, deliver_report
from ddpsim.cli.expand import OnlyFields, expand
from ddpsim.cli.flags import flags_of, text_in_flags
from ddpsim.cli.output import Output, note
from ddpsim.common.errors import InputError
from ddpsim.common.workers.requests import FEW, Workers
from ddpsim.explaining.run_facts import RunFacts

_WORTH_A_PROCESS = 20 << 20
"""Bytes of traces from which on a process for each of two files saves more than its start; chosen by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainArguments:
    """Arguments of `explain`: traces or a folder of a tuner, and an earlier run to compare them with."""

    traces: Annotated[
        str,
        typer.Argument(
            metavar="TRACES",
            help="Folder of rank traces, of torch.profiler or ddpexec; or one file; or a tuner's folder.",
        ),
    ]
    report: ReportFile = None
    against: Annotated[
        str | None, typer.Option(metavar="B", help="Traces of an earlier run: what changed since is told too.")
    ] = None


@expand
def explain(
    arguments: ExplainArguments,
    facts: RunFacts,
    by: Annotated[Workers, OnlyFields(("workers", "scheduler"))],
    output: Output,
    context: typer.Context,
) -> None:
    """Explain a traced run: where its step goes, which rank is late and why, what other buckets would gain."""
    from ddpsim.cli.explain_text import changes, text
    from ddpsim.explaining.against import compare_runs
    from ddpsim.explaining.explain import explain as explained
    from ddpsim.explaining.files import trace_files
    from ddpsim.explaining.tuned import is_tuning
    from ddpsim.workload.files import load_workload

    check_outputs(output, report=arguments.report)
    if is_tuning(arguments.traces):
        _print_tuned(arguments.traces, output, refused=arguments.report is not None or arguments.against is not None)
        return
    shapes = None if facts.shapes is None else load_workload(facts.shapes)
    files = [*trace_files(arguments.traces), *([] if arguments.against is None else trace_files(arguments.against))]
    large = len(files) > 1 and sum(file.stat().st_size for file in files) > _WORTH_A_PROCESS
    with by.crew(max(FEW, len(files)) if large else len(files)) as crew:
        explanation = explained(arguments.traces, facts, shapes=shapes, crew=crew)
        then = (
            None if arguments.against is None else explained(arguments.against, shapes=shapes, crew=crew, predict=False)
        )
    since = None if then is None else compare_runs(explanation, then)
    shown = replace(
        explanation, notes=tuple(_write_unpredicted(line, flags_of(context.command)) for line in explanation.notes)
    )
    for line in shown.notes:
        if shown.unpredicted is None or not line.endswith(shown.unpredicted):  # the text has it
            note(f"note: {line}")
    for line in () if then is None else then.notes:
        note(f"note: {arguments.against}: {line}")
    name = Path(arguments.traces).name or arguments.traces
    deliver_report(
        arguments.report,
        lambda pages: pages.explain_report(shown, title=name, command=command_line(context), since=since),
    )
    document = {**explanation.document(), "against": None if since is None else since.document()}
    answer = (lambda: text(shown)) if since is None else (lambda: f"{changes(since)}\n\n{text(shown)}")
    output.emit(document, answer, aside=arguments.report == STANDARD_OUTPUT)


def _write_unpredicted(line: str, flags: Mapping[str, str]) -> str:
    """Return a note with the options in it as flags, where it says why there is no prediction."""
    from ddpsim.explaining.ranks import UNPREDICTED

    before, mark, why = line.partition(UNPREDICTED)
    return f"{before}{mark}{text_in_flags(why, flags)}" if mark else line


def _print_tuned(folder: str, output: Output, *, refused: bool) -> None:
    """Print a tuner's decisions.

    Raises:
        InputError: options that a tuner's folder has no use for.
    """
    from ddpsim.cli.explain_text import tuning_text
    from ddpsim.explaining.tuned import read_tuning

    if refused:
        remedy = "leave them out, or give the folder of a trace"
        raise InputError("a tuner's folder takes neither --report nor --against", place=folder, remedy=remedy)
    tuning = read_tuning(folder)
    output.emit(tuning.document(), lambda: tuning_text(tuning))
