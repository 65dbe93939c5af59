"""What commands print: one JSON document, or aligned text; notes and progress on standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class Output:
    """How a command speaks."""

    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on standard error.")] = False

    def emit(self, document: object, text: Callable[[], str]) -> None:
        """Print `document` as JSON where --json was given, else `text()`."""
        write(json.dumps(document, indent=2, allow_nan=False) if self.as_json else text())

    def detail(self, message: str) -> None:
        """Print `message` on standard error under -v."""
        if self.verbose:
            note(message)


def write(text: str) -> None:
    """Print `text` on standard output; a reader that has gone away is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(message: str) -> None:
    """Print one line on standard error."""
    print(message, file=sys.stderr)


def progress(done: int, total: int, what: str) -> None:
    """Show how far a command has come, on one line of a terminal's standard error; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{f'{what}: {done} of {total}' if done < total else ''}", end="", file=sys.stderr, flush=True)


def table(header: Sequence[str], rows: Iterable[Sequence[object]], left: Container[int] = (0,)) -> str:
    """Return rows as aligned text: the columns in `left` to the left, the others to the right."""
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def _cell(value: object) -> str:
    return "-" if value is None else str(value)


def ms(seconds: float | None) -> str | None:
    """Return milliseconds for a table cell."""
    return None if seconds is None else f"{seconds * 1e3:.2f}"


def percent(ratio: float | None, signed: bool = False) -> str | None:
    """Return a ratio in percent for a table cell."""
    return None if ratio is None else f"{ratio * 100:{'+' if signed else ''}.1f} %"
