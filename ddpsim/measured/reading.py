"""One entry for every format a measured table has, told apart by its text."""

from __future__ import annotations

from pathlib import Path

from ddpsim.errors import CalibrationError
from ddpsim.files import named, read_text
from ddpsim.measured import csv_text, documents, nccl_tests
from ddpsim.measured.table import REMEDY, MeasuredTable


def read_table(path: str | Path) -> MeasuredTable:
    """Return the table in `path`, whichever of the formats it has.

    Raises:
        CalibrationError: unreadable, a column missing, a size or time that is no positive number, a rate that
            contradicts its time or rank count, no rows, another collective's; the row and column are named.
    """
    return parse_table(read_text(path, CalibrationError, REMEDY), named(path))


def parse_table(text: str, place: str) -> MeasuredTable:
    """Return the table in `text`; `place` names it in errors."""
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        return documents.parse(text, place)
    lines = text.splitlines()
    if nccl_tests.printed(lines):
        return nccl_tests.parse(lines, place)
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    named = "," in first or any(name in first for name in csv_text.SIZE_COLUMNS)
    return csv_text.parse(lines, place) if named else nccl_tests.parse(lines, place)
