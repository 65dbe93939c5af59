"""What commands print: one JSON document, or aligned text; notes and progress on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from ddpsim.common.errors import InputError
from ddpsim.common.options.exclusions import refuse_excluded
from ddpsim.common.options.option import Section
from ddpsim.common.tables import Record, ResultTable, csv_of, parse_columns

JsonDocument = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else."), Section.OUTPUT]


@dataclass(frozen=True, slots=True)
class Output:
    """The options on a command's output: one JSON document, or text."""

    as_json: JsonDocument = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more."), Section.OUTPUT] = False

    def emit(self, document: object, text: Callable[[], str], *, aside: bool = False) -> None:
        """Print `document` as JSON where --json was given, else `text()`; on standard error where it stands `aside`.

        Raises:
            InputError: a number that JSON lacks, the result of options out of all bounds.
        """
        try:
            content = json.dumps(document, indent=2, allow_nan=False) if self.as_json else text()
        except ValueError as error:
            remedy = "take options and figures nearer to those of real machines"
            raise InputError("the result has a number that is not finite", remedy=remedy) from error
        if aside:
            note(content)
        else:
            write(content)

    def print_detail(self, message: str) -> None:
        """Print `message` on standard error under -v."""
        if self.verbose:
            note(message)


@dataclass(frozen=True, slots=True)
class TableOutput(Output):
    """The options on the output of a command whose rows are a table: also its columns, and CSV.

    Raises:
        InputError: a column that there is not, or --csv beside --json.
    """

    columns: Annotated[
        str | None,
        typer.Option(
            "--columns",
            metavar="NAME,...",
            help="Columns of the table, of any command's, as keys of --json, which has all. [the command's own]",
        ),
        Section.OUTPUT,
    ] = None
    csv: Annotated[
        bool,
        typer.Option("--csv", help="Print the rows as CSV and nothing else, in the units of --json."),
        Section.OUTPUT,
    ] = False

    def __post_init__(self) -> None:
        parse_columns(self.columns)
        refuse_excluded(self, "tables")

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of --columns; none means the command's own."""
        return parse_columns(self.columns)

    def emit_rows(
        self,
        document: object,
        command: str,
        rows: Callable[[], Sequence[Record]],
        text: Callable[[], str],
        *,
        aside: bool = False,
    ) -> None:
        """Print as `emit` does; with --csv, `rows` as CSV."""
        self.emit(document, (lambda: csv_of(command, rows(), self.column_names)) if self.csv else text, aside=aside)


def write(text: str) -> None:
    """Print `text` on standard output."""
    print(text, flush=True)


def note(message: str) -> None:
    """Print one line on standard error."""
    print(message, file=sys.stderr)


def note_all(lines: Iterable[str]) -> None:
    """Print each line as a note on standard error."""
    for line in lines:
        note(f"note: {line}")


def note_once(lines: Iterable[str], printed: set[str]) -> None:
    """Print each line as a note, unless it is in `printed`, and add it there."""
    for line in lines:
        if line not in printed:
            printed.add(line)
            note(f"note: {line}")


def first_rows(table: ResultTable, most: int) -> str:
    """Return the first rows of a table as text, and how many more there are."""
    left = len(table.rows) - most
    return table.first(most).text() + (f"\n... {left} more; --json has all" if left > 0 else "")
