"""Measured tables read from files: one entry, `read_tables`, for every format, told apart by its text.

Formats: nccl-tests' printed text (`nccl_tests.py`), its `-J` JSON, which the microbenchmark writes too, and CSV with
named columns. Each parser makes `Cells` of its rows; `table.py` checks them and makes the table.

Source of the JSON keys: nccl-tests 2.18 `src/util.cu`. There a process has one entry in `config.devices` whatever the
number of its GPUs, a time that is no number is the text "nan", and `root` is text.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpsim.calibrating.measured import nccl_tests
from ddpsim.calibrating.measured.nccl_tests import find_forced_algorithm, operation_in, refuse_program, version_text
from ddpsim.calibrating.measured.table import REMEDY, Cells, MeasuredTable, as_float, header_of, operation_of, table_of
from ddpsim.common.errors import CalibrationError
from ddpsim.common.files import display_name, parse_json, read_text
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
        unit = f"; its {', '.join(near)} is in another unit" if near else ""
        where = f"{place}: row {numbered[0][0]}"
        raise CalibrationError(f"no {wanted} column among {', '.join(columns)}{unit}", place=where, remedy=_CSV_REMEDY)
    operation_at = next((columns.index(name) for name in _OPERATION_COLUMNS if name in columns), None)
    rows: dict[Operation | None, list[Cells]] = {}
    for number, line in numbered[1:]:
        cells = next(csv.reader([line]))
        where = f"{place}: row {number}"
        if len(cells) != len(columns):
            raise CalibrationError(f"{len(cells)} cells under {len(columns)} columns", place=where)
        index = next((i for i in time_at if cells[i].strip()), time_at[0])
        algbw, busbw = (_rate_at(columns, columns[index], rate) for rate in ("algbw", "busbw"))
        # A row's time is the first time column that it fills: out of place before in place.
        other = _find_in_place(columns, cells, index)
        named = ["" if at is None else f", column {columns[at]}" for at in (size_at, index, algbw, busbw)]
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
    return [table_of(place, stated, header, operation=operation) for operation, stated in (rows or {None: []}).items()]


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


def parse_document(text: str, place: str) -> MeasuredTable:
    """Return the table in a JSON document.

    Raises:
        CalibrationError: not JSON, without rows, another collective's, or a row that is malformed.
    """
    document = parse_json(text, place, CalibrationError, REMEDY, finite=False, wanted="a measured table")
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(results, list):
        raise CalibrationError(
            "no `results`", place=place, remedy="give nccl-tests' -J output or `ddpexec microbench -o`"
        )
    header = _header(document)
    arguments, stated = document.get("args"), operation_of(header, f"{place}: config")
    if stated is None and isinstance(arguments, list) and arguments:
        stated = refuse_program(str(arguments[0]).rpartition("/")[2], f"{place}: args.0")
    rows = [_cells(entry, f"{place}: results.{number}", stated) for number, entry in enumerate(results)]
    ddp = document.get("ddp") or {}
    costs = ddp.items() if isinstance(ddp, dict) else ()
    host_costs = {str(name): as_float(value) for name, value in costs if _is_number(value)}
    return table_of(place, rows, header, ddp=host_costs, operation=stated)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cells(entry: object, place: str, stated: Operation | None) -> Cells:
    if not isinstance(entry, dict):
        raise CalibrationError(f"{entry!r} is not a row", place=place)
    operation_in(str(entry.get("redop")), "", stated, f"{place}.redop")
    in_place = entry.get("in_place")
    for key in ("out_of_place", "in_place"):
        part = entry.get(key)
        if isinstance(part, dict) and part.get("time") is not None:
            return Cells(
                size=entry.get("size"),
                time=part["time"],
                place=place,
                algbw=part.get("alg_bw"),
                busbw=part.get("bus_bw"),
                in_place=in_place.get("time") if isinstance(in_place, dict) and in_place is not part else None,
                columns=(".size", *(f".{key}.{name}" for name in ("time", "alg_bw", "bus_bw")), ".in_place.time"),
            )
        if isinstance(part, dict) and "cpu_time" in part:
            raise CalibrationError("a processor's time", place=f"{place}.{key}.cpu_time", remedy="measure without -C")
    raise CalibrationError("no out_of_place.time and no in_place.time", place=place)


def _header(document: Mapping[str, object]) -> dict[str, str]:
    config = document.get("config")
    entries = config if isinstance(config, dict) else {}
    header = {str(key): str(value) for key, value in entries.items() if not isinstance(value, list | dict)}
    listed = entries.get("devices")
    devices = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    if devices:
        processes = {(str(entry.get("hostname")), str(entry.get("pid"))) for entry in devices}
        each = max(1, _parse_count(entries.get("nthreads"))) * max(1, _parse_count(entries.get("ngpus")))
        header |= {"ranks": str(len(processes) * each), "nodes": str(len({host for host, _ in processes}))}
    if _parse_count(entries.get("ngpus")) > 1:
        header["mode"] = f"nGpus {_parse_count(entries.get('ngpus'))}"
    if code := _parse_count(document.get("nccl_version")):
        header["nccl"] = version_text(code)
    environment = document.get("env")
    if isinstance(environment, list) and (algorithm := find_forced_algorithm(map(str, environment))):
        header.setdefault("algorithm", algorithm)
    return header


def _parse_count(value: object) -> int:
    """Return a count; 0 where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 31 else 0
