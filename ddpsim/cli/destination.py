"""Where -o leads: a file, what a link or a device stands for, or standard output for `-`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ddpsim.cli.output import note
from ddpsim.errors import InputError

STANDARD_OUTPUT = "-"
_PAGE = b"<!doctype html>"
_BEGINNINGS = (b"{", b"[", b"name:", b"\x1f\x8b", b"\x89PNG", b"%PDF", b"<svg", b"<?xml", b"%!PS")
"""Of what -o and --plot leave: JSON and its lines, YAML, gzip, pictures."""
_MOST_OF_A_PAGE = 1 << 26
"""Bytes of a page in which the name of what wrote it is looked for."""


def check_destination(path: str | Path | None, *, as_json: bool = False, option: str = "-o") -> None:
    """Refuse a file that cannot be written, before any work is done for it, and announce a folder that will be made.

    Args:
        path: of an option; None where it was not given.
        as_json: whether the command prints a JSON document, which leaves no room for a file on standard output.
        option: that `path` was given to.

    Raises:
        InputError: no such file can be written, or two documents on one stream are asked for.
    """
    from ddpsim.files import check_writable, find_existing_folder

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
    from ddpsim.files import encode_text, write_whole

    if str(path) == STANDARD_OUTPUT:
        sys.stdout.write(content)
        sys.stdout.flush()
    else:
        write_whole(path, encode_text(content, path))
