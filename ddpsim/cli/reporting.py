"""`--report`: one page that opens offline, written where -o could be written."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpsim.cli.destination import STANDARD_OUTPUT, check_apart, check_destination, deliver
from ddpsim.cli.output import Output, note
from ddpsim.options.option import Section

if TYPE_CHECKING:
    from ddpsim.report import Report

OPTION = "--report"

ReportFile = Annotated[
    str | None,
    typer.Option(
        OPTION,
        metavar="FILE.html",
        help="Write a page that opens offline: verdict, tables, curves, timeline, sources; - is standard output.",
    ),
    Section.OUTPUT,
]


def check_report(path: str | None, output: Output, others: Mapping[str, str | None]) -> None:
    """Refuse a report that cannot be written, before any work is done for it.

    Args:
        path: of the option; None where it was not given.
        output: how the command speaks.
        others: where else it writes, by the option.

    Raises:
        InputError: as `check_destination`, and two documents in one file, or on standard output.
    """
    if path is None:
        return
    check_apart(path, OPTION, others)
    check_destination(path, as_json=output.as_json, option=OPTION)


def deliver_report(path: str | None, make: Callable[[Any], Report]) -> None:
    """Write the report that `make` returns, given the module `ddpsim.report`, as a page; nothing without a path."""
    if path is None:
        return
    from ddpsim import report

    deliver(path, report.render(make(report)))
    if path != STANDARD_OUTPUT:
        note(f"wrote {path}")


def command_line(context: typer.Context) -> str:
    """Return the command that runs, as it would be typed."""
    given: Sequence[str] = context.find_root().obj or ()
    return shlex.join(["ddpsim", *given])
