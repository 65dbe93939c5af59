"""A measured table of one operation, and the checks that its rows pass whatever file they come from.

Times are out of place, in place where a row has no other; a row whose two columns are far apart was disturbed. Zero
sizes are left out, a size that occurs again takes the median; `notes` names all three.

Start at `MeasuredTable`, which is what all files become, and `table_of`, which makes it of `Cells`, the rows as a file
states them. `Conditions` is what its header states of how the collectives were launched.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ddpsim.common.errors import CalibrationError
from ddpsim.common.operation import Operation

REMEDY = "give nccl-tests' output, its -J file, what `python -m ddpexec microbench -o` wrote, or a CSV file"
_SHORTEST_S, _LONGEST_S, _LARGEST_BYTES = 1e-9, 1e5, 1 << 50
"""What a collective may take and move; chosen by hand: beyond it a unit is wrong."""
_DISTURBED = 0.15
"""Difference of the logarithms of a row's two columns beyond which one was disturbed; 0.01 is usual."""

_MOST_DIGITS = 300
"""Digits of a number beyond which a power of ten is none."""

_OTHER_UNIT = 10.0
"""Factor between a row's rate and its size over its time from which on one of them is in another unit."""


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A collective of `size_bytes` that took `time_s`; `place` is its row in the file.

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
    """A measured table holds the rows of one file, whose sizes ascend.

    Attributes:
        name: the file's name.
        ranks, nodes: by its header, ranks else by its rates; None where neither has them.
        header: `key: value` lines or the `config` of a JSON document; `nccl`, `mode` and `algorithm` also where
            nccl-tests prints them otherwise.
        ddp: host costs that a microbenchmark measured beside, by name.
        notes: rows left out or merged, ranks that are guessed.
        operation: that was measured.
    """

    name: str
    rows: tuple[MeasuredRow, ...]
    ranks: int | None = None
    nodes: int | None = None
    header: Mapping[str, str] = field(default_factory=dict)
    ddp: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    operation: Operation = Operation.ALLREDUCE

    def __repr__(self) -> str:
        what = f"{self.operation}, {len(self.rows)} rows, ranks {self.ranks}, nodes {self.nodes}"
        return f"<MeasuredTable: {self.name}, {what}>"

    @property
    def repeatability(self) -> float | None:
        """Median over rows of how far in place is from out of place, in logarithms; None where no row has both."""
        apart = [row.apart for row in self.rows if row.in_place_s is not None]
        return statistics.median(apart) if apart else None

    @property
    def isolated(self) -> bool:
        """Whether each collective was measured by itself, as the microbenchmark does; nccl-tests queues them."""
        return self.header.get("isolated", "").lower() == "true"


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a table's collectives were launched, as its header states it.

    Attributes:
        version: of NCCL, major * 1000 + minor; None where the header says nothing.
        algorithm: the one that was forced, or `auto`.
        gpus_per_process: more than one where one process launched on several GPUs.
        isolated: whether each collective was measured by itself, on an idle stream, instead of back to back.
        simple_only: whether NCCL_PROTO was Simple.
    """

    version: int | None = None
    algorithm: str = "auto"
    gpus_per_process: int = 1
    isolated: bool = False
    simple_only: bool = False

    @classmethod
    def of(cls, table: MeasuredTable) -> Conditions:
        """Return the conditions of `table`."""
        header = table.header
        stated = header.get("algorithm", "").lower()
        forced = next((name for name in ("ring", "tree", "nvls") if stated.startswith(name)), "auto")
        simple = header.get("proto", "").lower().startswith("simple")
        return cls(_version(header.get("nccl", "")), forced, _gpus_per_process(header), table.isolated, simple)


def _version(text: str) -> int | None:
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?!\d)", text)
    return int(match[1]) * 1000 + int(match[2]) if match else None


def _gpus_per_process(header: Mapping[str, str]) -> int:
    for key, pattern in (("command", r"-g (\d{1,9})\b"), ("mode", r"nGpus (\d{1,9})\b")):
        if match := re.search(pattern, header.get(key, "")):
            return int(match[1])
    return 1


@dataclass(frozen=True, slots=True)
class Cells:
    """One row as a file states it, not yet checked.

    Attributes:
        size, time: with `unit_s` the unit of the time.
        algbw, busbw: GB/s; None where the file has none.
        in_place: the other time, in its own unit, where the file has two.
        place: of the row.
        columns: what follows `place` in errors of size, time, rates and the other time.
    """

    size: object
    time: object
    place: str
    unit_s: float = 1e-6
    algbw: object = None
    busbw: object = None
    in_place: object = None
    in_place_unit_s: float = 1e-6
    columns: tuple[str, ...] = (
        ", column size",
        ", column time",
        ", column algbw",
        ", column busbw",
        ", column time in place",
    )

    def row(self) -> MeasuredRow:
        """Return the row.

        Raises:
            CalibrationError: a size or time that is none, or a rate that contradicts both.
        """
        size, time, algbw, _, other = (self.place + column for column in self.columns)
        in_place_s = None if self.in_place is None else _time(self.in_place, other, self.in_place_unit_s)
        row = MeasuredRow(_size(self.size, size), _time(self.time, time, self.unit_s), self.place, in_place_s)
        # A rate is size over time: of another order of magnitude, one of the three is in another unit.
        rate = rate_of(self.algbw)
        if rate is not None and rate > 0.1 and row.size_bytes:
            computed = row.size_bytes / row.time_s / 1e9
            if not 1 / _OTHER_UNIT < computed / rate < _OTHER_UNIT:
                what = f"{self.algbw} GB/s, but {row.size_bytes} B in {self.time} is {computed:.3g} GB/s"
                raise CalibrationError(what, place=algbw, remedy="state every row in the same unit")
        return row

    def share(self) -> tuple[float, float] | None:
        """Return bounds of busbw / algbw (`Operation.sent`) that the rounding of time and busbw allows.

        The ratio depends on the rank count alone. None where rounding is over a twentieth, or there is no busbw.
        """
        busbw, time = rate_of(self.busbw), as_float(self.time)
        far, off = _find_rounding(self.busbw), _find_rounding(self.time)
        if busbw is None or busbw <= 20 * far or time <= 20 * off:
            return None
        size_bytes = as_float(self.size)
        if not size_bytes:
            return None
        a_unit = 1e9 * self.unit_s / size_bytes
        return (busbw - far) * (time - off) * a_unit, (busbw + far) * (time + off) * a_unit


def table_of(
    place: str,
    cells: Iterable[Cells],
    header: Mapping[str, str],
    ddp: Mapping[str, float] | None = None,
    operation: Operation | None = None,
) -> MeasuredTable:
    """Return the table of rows that a file states; None of `operation` takes the header's, else an allreduce.

    Raises:
        CalibrationError: no rows, one that is malformed, or rates of another number of ranks or another collective.
    """
    stated = list(cells)
    if operation is None:
        operation = operation_of(header, place) or Operation.ALLREDUCE
    by_size: dict[int, list[MeasuredRow]] = {}
    for row in (each.row() for each in stated):
        by_size.setdefault(row.size_bytes, []).append(row)
    notes = [f"{row.place}: size 0 left out" for row in by_size.pop(0, [])]
    merged = []
    for size_bytes, same in sorted(by_size.items()):
        merged.append(_merge_rows(same))
        row = merged[-1]
        if row.undisturbed_s < row.time_s:
            what = f"{row.time_s * 1e6:g} us out of place, {row.undisturbed_s * 1e6:g} in place"
            notes.append(f"{row.place}: {what}; fits take the lesser")
        if len(same) > 1:
            places = ", ".join(row.place.rpartition(": ")[2] for row in same)
            notes.append(f"{place}: size {size_bytes} stands in {places}; their median is taken")
    if not merged:
        raise CalibrationError("no rows", place=place, remedy="give nccl-tests text or -J JSON, or a CSV")
    ranks = _count(header, "ranks", ("ranks", "nranks", "world_size"), place)
    nodes = _count(header, "nodes", ("nodes", "nnodes"), place)
    if ranks is None:
        ranks = _ranks_of(stated, operation)
        what = "every GPU of its nodes is taken" if ranks is None else f"{ranks} from the ratio of busbw and algbw"
        notes.append(f"{place}: no rank count is stated: {what}")
    else:
        _check_ranks(stated, ranks, operation)
    name, rows = Path(place).name, tuple(merged)
    return MeasuredTable(name, rows, ranks, nodes, dict(header), dict(ddp or {}), tuple(notes), operation)


def operation_of(header: Mapping[str, str], place: str) -> Operation | None:
    """Return the operation that a header names; None where it names none.

    Raises:
        UnknownNameError: a name that is none.
    """
    name = header.get("operation")
    return None if name is None else Operation.named(name, place=f"{place}: operation")


def _merge_rows(same: Sequence[MeasuredRow]) -> MeasuredRow:
    """Return the medians of rows of one size."""
    in_place = [row.in_place_s for row in same if row.in_place_s is not None]
    other = statistics.median(in_place) if in_place else None
    return MeasuredRow(same[0].size_bytes, statistics.median(row.time_s for row in same), same[0].place, other)


def header_of(lines: Iterable[str]) -> dict[str, str]:
    """Return the `# key: value` lines."""
    pairs = (re.match(r"#\s*([a-z_]+):\s*(.*\S)", line) for line in lines)
    return {match[1]: match[2] for match in pairs if match}


def rate_of(cell: object) -> float | None:
    """Return a rate in GB/s; None where the cell has none."""
    try:
        rate = as_float(cell)
    except (TypeError, ValueError):
        return None
    return rate if math.isfinite(rate) else None


def as_float(value: object) -> float:
    """Return `value` as a float; infinity where it is larger than any."""
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf


def _find_rounding(cell: object) -> float:
    """Return half a unit of the last digit of a printed number; of a whole one, of its last digit that is not 0."""
    whole, point, digits = str(cell).strip().partition("e")[0].partition(".")
    last = -len(digits) if point else len(whole) - len(whole.rstrip("0"))
    return 0.5 * 10.0 ** max(-_MOST_DIGITS, min(last, _MOST_DIGITS))


def _ranks_of(stated: Iterable[Cells], operation: Operation) -> int | None:
    """Return the one rank count with which every row's rates agree; None where there are several, or none.

    busbw / algbw of an allreduce is 2 (n - 1) / n (nccl-tests' PERFORMANCE.md), so that n = 2 / (2 - ratio). Each row
    bounds the ratio, and the bounds of all rows together often leave one whole n.
    """
    bounds = [share for share in (each.share() for each in stated) if share is not None]
    if not bounds or operation.sent(2) == operation.sent(3):
        return None
    whole = Operation.ALLREDUCE.sent(2) / operation.sent(2)
    low, high = max(low for low, _ in bounds) * whole, min(high for _, high in bounds) * whole
    if not 0 < low <= high < 2:
        return None
    first, last = math.ceil(2 / (2 - low) - 1e-9), math.floor(2 / (2 - high) + 1e-9)
    return first if first == last else None


def _check_ranks(stated: Iterable[Cells], ranks: int, operation: Operation) -> None:
    wanted = operation.sent(ranks)
    for each in stated:
        share = each.share()
        if share is not None and not share[0] * 0.99 <= wanted <= share[1] * 1.01:
            what = f"{each.busbw} GB/s is not {wanted:.4g} times size over time, as of {operation} on {ranks} ranks"
            remedy = "give the table its ranks and its operation: `# ranks: 8`, `# operation: all_gather`"
            raise CalibrationError(what, place=each.place + each.columns[3], remedy=remedy)


def _count(header: Mapping[str, str], what: str, keys: Iterable[str], place: str) -> int | None:
    for key in keys:
        if match := re.match(r"-?\d{1,9}(?!\d)", header.get(key, "")):
            if int(match[0]) < 1:
                raise CalibrationError(f"{match[0]} {what}", place=f"{place}: {key}", remedy="state at least one")
            return int(match[0])
    return None


def _time(cell: object, place: str, unit_s: float) -> float:
    try:
        value = as_float(cell)
    except (TypeError, ValueError):
        raise CalibrationError(f"{cell!r} is not a number", place=place, remedy="write it without a unit") from None
    if not math.isfinite(value) or value <= 0:
        raise CalibrationError(f"time {cell!r} is not positive", place=place, remedy="leave such rows out")
    if not _SHORTEST_S <= value * unit_s <= _LONGEST_S:
        what = f"time {cell!r} is {value * unit_s:.3g} s, which no collective takes"
        raise CalibrationError(what, place=place, remedy="state it in the unit of the others")
    return value * unit_s


def _size(cell: object, place: str) -> int:
    try:
        value = as_float(cell)
    except (TypeError, ValueError):
        raise CalibrationError(f"{cell!r} is not a number of bytes", place=place) from None
    if not 0 <= value <= _LARGEST_BYTES or value != int(value):
        raise CalibrationError(f"size {cell!r} is not a whole number of bytes", place=place)
    return int(value)
