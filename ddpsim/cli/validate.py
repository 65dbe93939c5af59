"""`ddpsim validate`: a prediction held against a measured run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ddpsim.cli.destination import (
    STANDARD_OUTPUT,
    ReportFile,
    check_outputs,
    command_line,
    deliver_report,
    plot_option,
)
from ddpsim.cli.expand import expand
from ddpsim.cli.output import Output, first_rows, note, note_all
from ddpsim.common.errors import InputError
from ddpsim.common.tables.cells import percent
from ddpsim.prediction.path import format_helps_most

if TYPE_CHECKING:
    from ddpsim.planning.validate import Validation

_SHOWN = 24
"""Rows of buckets in the text, `--json` has all; chosen by hand, for one screen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateArguments:
    """Arguments of `validate`: a prediction, what was measured, and the error that is too large."""

    predicted: Annotated[str, typer.Argument(metavar="PREDICTED", help="What `ddpsim predict --json` printed.")]
    measured: Annotated[str, typer.Argument(metavar="MEASURED_DIR", help="Folder that a run's --out wrote.")]
    max_error: Annotated[
        str | None, typer.Option(metavar="5%", help="Exit with 1 where the step's error is larger.")
    ] = None
    interleave: Annotated[
        bool,
        typer.Option(
            "--interleave", help="--max-error is of the ratio to one process, of a run that took turns with one."
        ),
    ] = False
    plot: Annotated[str | None, plot_option("Draw predicted over measured times.")] = None
    report: ReportFile = None


@expand
def validate(
    arguments: ValidateArguments,
    output: Output,
    context: typer.Context,
) -> None:
    """Hold a prediction against a measured run.

    The step, the overhead over one process, every bucket, and what trivial predictors say.
    """
    from ddpsim.planning.validate import validate as hold_against
    from ddpsim.prediction.document import load_prediction
    from ddpsim.trace.json import read_trace

    check_outputs(output, plot=arguments.plot, report=arguments.report)
    bound = None if arguments.max_error is None else _ratio(arguments.max_error)
    prediction, trace = load_prediction(arguments.predicted), read_trace(arguments.measured)
    try:
        result = hold_against(prediction, trace)
    except InputError as error:
        error.at(arguments.measured)
    if arguments.interleave and result.ratio is None:
        what, remedy = "it did not take turns with one process", "run it with `interleave`, or leave `interleave` out"
        raise InputError(what, place=arguments.measured, remedy=remedy)
    if arguments.plot:
        _draw(result, arguments.plot)
    deliver_report(
        arguments.report,
        lambda pages: pages.validation_report(result, prediction, trace, command=command_line(context)),
    )
    note_all([] if result.other_work is None else result.other_work.notes())
    output.emit(result.document(), lambda: _text(result), aside=arguments.report == STANDARD_OUTPUT)
    judged = result.ratio if arguments.interleave and result.ratio is not None else result.iterations
    error_size = abs(judged.error or 0.0)
    if bound is not None and error_size > bound:
        of = "step" if judged is result.iterations else "ratio"
        note(f"the {of}'s error, {percent(error_size)}, exceeds --max-error {arguments.max_error}")
        raise typer.Exit(1)


def _ratio(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / 100 if text.endswith("%") else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"{text!r} is not a bound in percent", place="max_error", remedy="write e.g. --max-error 5%")
    return value


def _draw(result: Validation, path: str) -> None:
    from ddpsim.report.plots import plot_validation

    step = {"iteration": [(result.iterations.measured_s, result.iterations.predicted_s)]}
    buckets = {label: group for label, group in result.bucket_times().items() if group}
    plot_validation({**step, **buckets}, path, "time (ms)")
    note(f"wrote {path}")


def _text(result: Validation) -> str:
    from ddpsim.planning.validate import BUCKETS, TERMS

    lines = []
    for title, table in result.tables().items():
        if title == BUCKETS:
            lines += ["buckets, predicted - measured as a share of the step", first_rows(table, _SHOWN)]
            continue
        lines.append(table.text())
        if title == TERMS:
            lines.append(f"largest error: {result.largest_term.name.replace('_', ' ')}")
            lines += [] if result.path is None else ["", result.path.text("predicted ")]
            lines += format_helps_most(result.helps, result.iterations.predicted_s)
        lines.append("")
    return "\n".join(lines).rstrip()
