"""Measured tables as CSV: named columns, one of them for the operation, `#` lines for ranks and nodes."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from ddpsim.calibrating.measured.table import Cells, MeasuredTable, header_of, table_of
from ddpsim.common.errors import CalibrationError
from ddpsim.common.operation import Operation

_TIME_COLUMNS = {"oop_time_us": 1e-6, "time_us": 1e-6, "time(us)": 1e-6, "time(ns)": 1e-9, "ip_time_us": 1e-6}
SIZE_COLUMNS = ("size_bytes", "size(B)")
_OPERATION_COLUMNS = ("operation", "op")
_CSV_REMEDY = f"columns wanted: {' or '.join(SIZE_COLUMNS)}, and one of {', '.join(_TIME_COLUMNS)}"


def parse_csv(lines: Sequence[str], place: str) -> list[MeasuredTable]:
    """Return the tables in the lines of a CSV file, one an operation; rates are held against times and ranks.

    The operation of a row is what its column `operation` says, else the header's line, else an allreduce.

    Raises:
        CalibrationError: a column missing or in another unit, a row of another length, or a cell that is no number.
        UnknownNameError: an operation that is none.
    """
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
    columns = [name.strip() for name in next(csv.reader([numbered[0][1]]))]
    size_at = next((columns.index(name) for name in SIZE_COLUMNS if name in columns), None)
    time_at = [columns.index(name) for name in _TIME_COLUMNS if name in columns]
    if size_at is None or not time_at:
        wanted = "size" if size_at is None else "time"
        near = [name for name in columns if wanted in name]
        found = f"; its {', '.join(near)} is in another unit" if near else ""
        where = f"{place}: row {numbered[0][0]}"
        raise CalibrationError(f"no {wanted} column among {', '.join(columns)}{found}", place=where, remedy=_CSV_REMEDY)
    operation_at = next((columns.index(name) for name in _OPERATION_COLUMNS if name in columns), None)
    rows: dict[Operation | None, list[Cells]] = {}
    for number, line in numbered[1:]:
        cells = next(csv.reader([line]))
        where = f"{place}: row {number}"
        if len(cells) != len(columns):
            raise CalibrationError(f"{len(cells)} cells under {len(columns)} columns", place=where)
        index = next((i for i in time_at if cells[i].strip()), time_at[0])
        algbw, busbw = (_rate_at(columns, columns[index], rate) for rate in ("algbw", "busbw"))
        found_at, other = (size_at, index, algbw, busbw), _find_in_place(columns, cells, index)
        named = ["" if at is None else f", column {columns[at]}" for at in found_at]
        operation = None
        if operation_at is not None:
            operation = Operation.named(cells[operation_at], f"{where}, column {columns[operation_at]}")
        rows.setdefault(operation, []).append(
            Cells(
                size=cells[size_at],
                time=cells[index],
                place=where,
                unit_s=_TIME_COLUMNS[columns[index]],
                algbw=None if algbw is None else cells[algbw],
                busbw=None if busbw is None else cells[busbw],
                in_place=None if other is None else cells[other],
                in_place_unit_s=_TIME_COLUMNS["time_us" if other is None else columns[other]],
                columns=(*named, "" if other is None else f", column {columns[other]} in place"),
            )
        )
    header = header_of(lines)
    return [table_of(place, found, header, operation=operation) for operation, found in (rows or {None: []}).items()]


def _find_in_place(columns: Sequence[str], cells: Sequence[str], time_at: int) -> int | None:
    """Return the column of the in-place time beside that in `time_at`: a second one of its name, or its own."""
    name = columns[time_at] if columns[time_at] in columns[time_at + 1 :] else "ip_time_us"
    other = len(columns) - 1 - columns[::-1].index(name) if name in columns else time_at
    return other if other != time_at and cells[other].strip() else None


def _rate_at(columns: Sequence[str], time: str, rate: str) -> int | None:
    """Return the column of a rate that belongs to a time: in or out of place as that is, in GB/s."""
    kind = next((kind for kind in ("oop_", "ip_") if time.startswith(kind)), "")
    names = (f"{kind}{rate}_GBps", f"{kind}{rate}(GB/s)")
    return next((columns.index(name) for name in names if name in columns), None)
