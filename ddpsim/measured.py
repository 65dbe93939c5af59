"""Measured allreduce tables: nccl-tests text, its `-J` JSON (the microbenchmark writes the same), CSV.

Times are out of place, in place where a row has no other; a row whose two columns are far apart was disturbed. Zero
sizes are left out, a size that occurs again takes the median; `notes` names all three.
"""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpsim.errors import CalibrationError
from ddpsim.files import parse_json, read_text

_TIME_COLUMNS = {"oop_time_us": 1e-6, "time_us": 1e-6, "time(us)": 1e-6, "time(ns)": 1e-9, "ip_time_us": 1e-6}
_SIZE_COLUMNS = ("size_bytes", "size(B)")
_DISTURBED = 0.15
"""Difference of the logarithms of a row's two columns beyond which one was disturbed; 0.01 is usual."""

_TABLE_REMEDY = "give nccl-tests' output, its -J file, what `python -m ddpexec microbench -o` wrote, or a CSV file"
_CSV_REMEDY = f"columns wanted: {' or '.join(_SIZE_COLUMNS)}, and one of {', '.join(_TIME_COLUMNS)}"


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """An allreduce of `size_bytes` that took `time_s`; `place` is its row in the file.

    Attributes:
        in_place_s: its other time, where it has two.
    """

    size_bytes: int
    time_s: float
    place: str
    in_place_s: float | None = None

    @property
    def apart(self) -> float:
        """How far the logarithms of the two times are apart; 0 where there is one."""
        return abs(math.log(self.in_place_s / self.time_s)) if self.in_place_s else 0.0

    @property
    def undisturbed_s(self) -> float:
        """The time to calibrate with: the lesser of two that are far apart, since what disturbs only adds."""
        return min(self.time_s, self.in_place_s) if self.in_place_s and self.apart > _DISTURBED else self.time_s


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """The rows of one file, sizes ascending.

    Attributes:
        name: the file's name.
        ranks, nodes: what its header says; None where it says nothing.
        header: `key: value` lines or the `config` of a JSON document.
        ddp: host costs that a microbenchmark measured beside, by name.
        notes: rows left out or merged.
    """

    name: str
    rows: tuple[MeasuredRow, ...]
    ranks: int | None = None
    nodes: int | None = None
    header: Mapping[str, str] = field(default_factory=dict)
    ddp: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def repeatability(self) -> float | None:
        """Median over rows of how far in place is from out of place, in logarithms; None where no row has both."""
        apart = [row.apart for row in self.rows if row.in_place_s is not None]
        return statistics.median(apart) if apart else None


def read_table(path: str | Path) -> MeasuredTable:
    """Return the table in `path`, whichever of the formats it has.

    Raises:
        CalibrationError: unreadable, a column missing, a size or time that is no positive number, no rows; the row
            and column are named.
    """
    return parse_table(read_text(path, CalibrationError, _TABLE_REMEDY), str(path))


def parse_table(text: str, place: str) -> MeasuredTable:
    """Return the table in `text`; `place` names it in errors."""
    if text.lstrip().startswith("{"):
        return _from_json(text, place)
    lines = text.splitlines()
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    return _from_csv(lines, place) if "," in first else _from_nccl_tests(lines, place)


def _from_json(text: str, place: str) -> MeasuredTable:
    document = parse_json(text, place, CalibrationError, _TABLE_REMEDY)
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(results, list):
        raise CalibrationError(
            "no `results`", place=place, remedy="give nccl-tests' -J output or `ddpexec microbench -o`"
        )
    rows = [_json_row(entry, f"{place}: results.{number}") for number, entry in enumerate(results)]
    config = document.get("config") or {}
    header = {str(key): str(value) for key, value in config.items()} if isinstance(config, dict) else {}
    ddp = document.get("ddp") or {}
    costs = ddp.items() if isinstance(ddp, dict) else ()
    return _table(place, rows, header, ddp={str(k): _float(v) for k, v in costs if isinstance(v, int | float)})


def _json_row(entry: object, place: str) -> MeasuredRow:
    if not isinstance(entry, dict):
        raise CalibrationError(f"{entry!r} is not a row", place=place)
    parts = [(key, entry.get(key)) for key in ("out_of_place", "in_place")]
    times = [
        _number(part["time"], f"{place}.{key}.time") * 1e-6
        for key, part in parts
        if isinstance(part, dict) and part.get("time") is not None
    ]
    if not times:
        raise CalibrationError("no out_of_place.time and no in_place.time", place=place)
    return MeasuredRow(_size(entry.get("size"), f"{place}.size"), times[0], place, *times[1:])


def _from_csv(lines: Sequence[str], place: str) -> MeasuredTable:
    numbered = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
    columns = [name.strip() for name in next(csv.reader([numbered[0][1]]))]
    size_at = next((columns.index(name) for name in _SIZE_COLUMNS if name in columns), None)
    time_at = [(columns.index(name), name) for name in _TIME_COLUMNS if name in columns]
    if size_at is None or not time_at:
        wanted = "size" if size_at is None else "time"
        near = [name for name in columns if wanted in name]
        found = f"; its {', '.join(near)} is in another unit" if near else ""
        where = f"{place}: row {numbered[0][0]}"
        raise CalibrationError(f"no {wanted} column among {', '.join(columns)}{found}", place=where, remedy=_CSV_REMEDY)
    rows = []
    for number, line in numbered[1:]:
        cells = next(csv.reader([line]))
        where = f"{place}: row {number}"
        if len(cells) != len(columns):
            raise CalibrationError(f"{len(cells)} cells under {len(columns)} columns", place=where)
        index, name = next(((i, name) for i, name in time_at if cells[i].strip()), time_at[0])
        time_s = _number(cells[index], f"{where}, column {name}") * _TIME_COLUMNS[name]
        size_bytes = _size(cells[size_at], f"{where}, column {columns[size_at]}")
        rows.append(MeasuredRow(size_bytes, time_s, where, _in_place_s(columns, cells, index, where)))
    return _table(place, rows, _header(lines))


def _from_nccl_tests(lines: Sequence[str], place: str) -> MeasuredTable:
    columns, rows = ["size", "count", "type", "redop", "root", "time"], []
    for number, line in enumerate(lines, 1):
        words = line.split()
        where = f"{place}: row {number}"
        if line.lstrip().startswith("#"):
            names = line.lstrip().lstrip("#").split()
            if "size" in names and "time" in names:
                columns = names
            if names and names[0] == "(B)" and "(us)" not in names:
                raise CalibrationError(f"units {' '.join(names)}", place=where, remedy="times are wanted in (us)")
        elif words and re.fullmatch(r"[-+\d.]\S*", words[0]):
            at = columns.index("time")
            if len(words) <= at:
                raise CalibrationError(f"{len(words)} cells, time is number {at + 1}", place=where)
            time_s = _number(words[at], f"{where}, column time") * 1e-6
            size_bytes = _size(words[0], f"{where}, column size")
            rows.append(MeasuredRow(size_bytes, time_s, where, _in_place_s(columns, words, at, where)))
    ranks = sum(1 for line in lines if re.match(r"#\s+Rank\s+\d+", line))
    hosts = {m[1] for line in lines if (m := re.match(r"#\s+Rank\s+\d+.*\bon\s+(\S+)\s+device", line))}
    found = {"ranks": str(ranks), "nodes": str(len(hosts) or 1)} if ranks else {}
    return _table(place, rows, {**found, **_header(lines)})


def _in_place_s(columns: Sequence[str], cells: Sequence[str], at: int, place: str) -> float | None:
    """Return the in-place time beside the out-of-place one in column `at`: a second column of its name, or its own."""
    name = columns[at] if columns[at] in columns[at + 1 :] else "ip_time_us"
    other = len(columns) - 1 - columns[::-1].index(name) if name in columns else at
    if other == at or other >= len(cells) or not cells[other].strip():
        return None
    return _number(cells[other], f"{place}, column {name} in place") * _TIME_COLUMNS.get(name, 1e-6)


def _table(
    place: str, rows: Iterable[MeasuredRow], header: Mapping[str, str], ddp: Mapping[str, float] | None = None
) -> MeasuredTable:
    by_size: dict[int, list[MeasuredRow]] = {}
    for row in rows:
        by_size.setdefault(row.size_bytes, []).append(row)
    notes = [f"{row.place}: size 0 left out" for row in by_size.pop(0, [])]
    merged = []
    for size_bytes, same in sorted(by_size.items()):
        in_place = [row.in_place_s for row in same if row.in_place_s is not None]
        row = MeasuredRow(
            size_bytes,
            statistics.median(row.time_s for row in same),
            same[0].place,
            statistics.median(in_place) if in_place else None,
        )
        merged.append(row)
        if row.undisturbed_s < row.time_s:
            what = f"{row.time_s * 1e6:g} us out of place, {row.undisturbed_s * 1e6:g} in place"
            notes.append(f"{row.place}: {what}; fits take the lesser")
        if len(same) > 1:
            places = ", ".join(row.place.rpartition(": ")[2] for row in same)
            notes.append(f"{place}: size {size_bytes} stands in {places}; their median is taken")
    if not merged:
        raise CalibrationError("no rows", place=place, remedy="give nccl-tests text or -J JSON, or a CSV")
    ranks, nodes = (_count(header, keys) for keys in (("ranks", "nranks", "world_size"), ("nodes", "nnodes")))
    return MeasuredTable(Path(place).name, tuple(merged), ranks, nodes, dict(header), dict(ddp or {}), tuple(notes))


def _header(lines: Iterable[str]) -> dict[str, str]:
    pairs = (re.match(r"#\s*([a-z_]+):\s*(.*\S)", line) for line in lines)
    return {match[1]: match[2] for match in pairs if match}


def _count(header: Mapping[str, str], keys: Iterable[str]) -> int | None:
    for key in keys:
        if (match := re.match(r"\d+", header.get(key, ""))) and int(match[0]) > 0:
            return int(match[0])
    return None


def _float(value: object) -> float:
    """Return `value` as a float; infinity where it is larger than any."""
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf


def _number(cell: object, place: str) -> float:
    try:
        value = _float(cell)
    except (TypeError, ValueError):
        raise CalibrationError(f"{cell!r} is not a number", place=place, remedy="write it without a unit") from None
    if not math.isfinite(value) or value <= 0:
        raise CalibrationError(f"time {cell!r} is not positive", place=place, remedy="leave such rows out")
    return value


def _size(cell: object, place: str) -> int:
    try:
        value = _float(cell)
    except (TypeError, ValueError):
        raise CalibrationError(f"{cell!r} is not a number of bytes", place=place) from None
    if not math.isfinite(value) or value < 0 or value != int(value):
        raise CalibrationError(f"size {cell!r} is not a whole number of bytes", place=place)
    return int(value)
