"""One entry for every format a measured table has, told apart by its text."""

from __future__ import annotations

from pathlib import Path

from ddpsim.calibrating.measured import nccl_tests
from ddpsim.calibrating.measured.table import REMEDY, MeasuredTable
from ddpsim.common.errors import CalibrationError
from ddpsim.common.files import display_name, read_text
from ddpsim.common.operation import Operation


def read_tables(path: str | Path) -> list[MeasuredTable]:
    """Return the tables in `path`, one an operation, whichever of the formats it has.

    Raises:
        CalibrationError: unreadable, a column missing, a size or time that is no positive number, a rate that
            contradicts its time or rank count, no rows, an operation that is not named; the row and column are named.
        UnknownNameError: an operation that is none.
    """
    return parse_tables(read_text(path, CalibrationError, REMEDY), display_name(path))


def read_table(path: str | Path) -> MeasuredTable:
    """Return the one table in `path`, of several the allreduce's.

    Raises:
        CalibrationError: what `read_tables` refuses, or several operations, none of them an allreduce.
    """
    return _take_only(read_tables(path), display_name(path))


def parse_table(text: str, place: str) -> MeasuredTable:
    """Return the one table in `text`, of several the allreduce's; `place` names it in errors."""
    return _take_only(parse_tables(text, place), place)


def parse_tables(text: str, place: str) -> list[MeasuredTable]:
    """Return the tables in `text`, one an operation; `place` names it in errors."""
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        return [parse_document(text, place)]
    lines = text.splitlines()
    if nccl_tests.is_output(lines):
        return nccl_tests.parse(lines, place)
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    by_name = "," in first or any(name in first for name in SIZE_COLUMNS)
    return parse_csv(lines, place) if by_name else nccl_tests.parse(lines, place)


def _take_only(tables: list[MeasuredTable], place: str) -> MeasuredTable:
    if len(tables) == 1:
        return tables[0]
    for table in tables:
        if table.operation is Operation.ALLREDUCE:
            return table
    what = f"tables of {', '.join(table.operation for table in tables)}"
    raise CalibrationError(what, place=place, remedy="give a file of one operation")
