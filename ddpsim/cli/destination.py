"""Destinations of a command's documents: the files of -o, --plot and --report; `-` is standard output."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddpsim.cli.output import Output, note
from ddpsim.common.errors import InputError
from ddpsim.common.options.option import Section

if TYPE_CHECKING:
    from ddpsim.report import Report

STANDARD_OUTPUT = "-"
_PAGE = b"<!doctype html>"
_BEGINNINGS = (b"{", b"[", b"name:", b"\x1f\x8b", b"\x89PNG", b"%PDF", b"<svg", b"<?xml", b"%!PS")
"""Beginnings of files that -o and --plot write: JSON and its lines, YAML, gzip, pictures."""
_MOST_OF_A_PAGE = 1 << 26
"""Bytes of a page that are searched for the name of the program that wrote it."""


def check_destination(path: str | Path | None, *, as_json: bool = False, option: str = "-o") -> None:
    """Refuse a file that cannot be written, before any work is done for it, and announce a folder that will be made.

    Args:
        path: the value of an option; None without it.
        as_json: whether the command prints a JSON document, which leaves no room for a file on standard output.
        option: the one whose value is `path`.

    Raises:
        InputError: the file cannot be written, or two documents would go to one stream.
    """
    from ddpsim.common.files import check_writable, find_existing_folder

    if path is None:
        return
    if str(path) == STANDARD_OUTPUT:
        if as_json:
            raise InputError(f"{option} - and --json both print on standard output", place=option, remedy="keep one")
        return
    check_writable(path)
    _keep_others(Path(path), option)
    folder = Path(os.path.realpath(path)).parent
    if find_existing_folder(folder) != folder:
        note(f"note: {folder} is no folder yet, and is made")


def check_apart(path: str, option: str, others: Mapping[str, str | None]) -> None:
    """Refuse two documents in one file, or on standard output.

    Args:
        path: of `option`.
        others: where else a command writes, by the option.
    """
    for other, there in others.items():
        if there is not None and os.path.realpath(path) == os.path.realpath(there):
            where = "print on standard output" if path == STANDARD_OUTPUT else f"write {path}"
            raise InputError(f"{other} and {option} both {where}", place=option, remedy="name two files")


def _keep_others(path: Path, option: str) -> None:
    """Refuse to write over a file that no command here writes: notes, a table, code."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(_MOST_OF_A_PAGE).lstrip()
    page = option == "--report"
    ours = start[:15].lower() == _PAGE and b"ddpsim" in start if page else start.startswith(_BEGINNINGS)
    if start and not ours:
        what = f"{path} is there and is {'no page' if page else 'nothing'} that this writes"
        raise InputError(what, place=option, remedy="name another file, or remove it first")


def deliver(path: str | Path, content: str) -> None:
    """Write a file's text where -o leads: to standard output for `-`, gzipped where the name ends in `.gz`."""
    from ddpsim.common.files import encode_text, write_whole

    if str(path) == STANDARD_OUTPUT:
        sys.stdout.write(content)
        sys.stdout.flush()
    else:
        write_whole(path, encode_text(content, path))


def plot_option(help_text: str) -> Any:
    """Return the option `--plot FILE.png`; any other ending is refused before the command starts."""
    return typer.Option("--plot", metavar="FILE.png", help=help_text, callback=_png)


def _png(path: str | None) -> str | None:
    if path is not None and PurePath(path).suffix.lower() != ".png":
        raise InputError(f"{path!r} does not end in .png", place="plot", remedy="pictures are PNG: name it FILE.png")
    return path


_REPORT = "--report"

ReportFile = Annotated[
    str | None,
    typer.Option(
        _REPORT,
        metavar="FILE.html",
        help="Write a page that opens offline: verdict, tables, curves, timeline, sources; - is standard output.",
    ),
    Section.OUTPUT,
]


def check_outputs(
    output: Output, *, out: str | None = None, plot: str | None = None, report: str | None = None
) -> None:
    """Refuse what cannot be written, before any work is done for it: a file of -o, a picture, a report.

    Raises:
        InputError: as `check_destination`, and a report in one file with another document, or on standard output too.
    """
    check_destination(out, as_json=output.as_json)
    check_destination(plot)
    if report is not None:
        check_apart(report, _REPORT, {"-o": out, "--plot": plot})
        check_destination(report, as_json=output.as_json, option=_REPORT)


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
    arguments: Sequence[str] = context.find_root().obj or ()
    return shlex.join(["ddpsim", *arguments])
