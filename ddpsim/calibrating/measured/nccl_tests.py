"""nccl-tests' printed tables, of every version, as logs and pages hold them.

The header tells where the time stands: `root` came with 2.12, the first line's columns were `bytes N type op time`, in
milliseconds. Without a header a root of -1 tells. What launchers put before each line is left out: `[1,0]<stdout>:` of
mpirun, `0:` of srun, `host:` of pdsh, a time stamp of kubectl. Source: nccl-tests `src/common.cu`, `src/util.cu`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ddpsim.calibrating.measured.table import Cells, MeasuredTable, header_of, operation_of, table_of
from ddpsim.common.errors import CalibrationError, UnknownNameError
from ddpsim.common.operation import Operation

_PREFIX = re.compile(r"^(?:\s*\S*\d{4}-\d\d-\d\dT\S+\s)?(?:.{0,80}?<std(?:out|err)>:\s?|\s*[\w.-]+:(?:\s+|$))?")
_ROW = re.compile(r"[-+]?[\d.]*\d\S*")
_RANK = re.compile(r"#\s+(?:Rank|Device)\s+(\d{1,9})\b")
_HOST = re.compile(r"\bon\s+(\S+)\s+device")
_GROUP = re.compile(r"#\s+Rank\s+\d+\s+Group\s+(\d+)")
_TEST = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_VERSION = re.compile(r"\bNCCL version (\d+\.\d+\S*)")
_LIBRARY = re.compile(r"\bnccl-library=(\d+)")
_MODE = re.compile(r"#\s*(nThreads? \d+ nGpus \d+)")
_ALGORITHM = re.compile(r"\bNCCL_ALGO(?:=| set by environment to )\"?(\w+)[\".]*\s*$")
_FIGURES = ("time", "algbw", "busbw", "#wrong")
_NEW = ("size", "count", "type", "redop", "root", *_FIGURES, *_FIGURES)
_OLD = ("size", "count", "type", "redop", *_FIGURES, *_FIGURES)


def is_output(lines: Iterable[str]) -> bool:
    """Return whether nccl-tests printed these lines: the names of its times and rates stand in one."""
    return any("busbw" in (_names(_without_prefix(line)) or ()) for line in lines)


def parse(lines: Sequence[str], place: str) -> list[MeasuredTable]:
    """Return the tables in the lines of a log, one an operation.

    The operation is that of the program whose start the log tells, else of a `# operation:` line; without either, of an
    allreduce where rows reduce.

    Raises:
        CalibrationError: times of the processor or in another unit, a program that measures none of the operations,
            rows that reduce nothing and name no operation, collectives of several groups at once, a row cut off, or a
            cell that is no number.
    """
    # One pass over the log: a line may start another program, name the columns, name their units, or be a row of the
    # program and columns named last. Everything else is another program's output.
    lines = [_without_prefix(line) for line in lines]
    header = {**_header(lines, place), **header_of(lines)}
    columns: Sequence[str] | None = None
    stated = operation_of(header, place)
    rows: dict[Operation, list[Cells]] = {}
    refused: CalibrationError | None = None
    for number, line in enumerate(lines, 1):
        where = f"{place}: row {number}"
        if match := _TEST.match(line):
            stated = parse_program(match[1])
            refused = _make_operation_error(match[1], where) if stated is None else refused
        elif names := _names(line):
            columns = names
            if "time" not in names:
                place = f"{where}, column cputime"
                raise CalibrationError("a processor's time", place=place, remedy="measure without -C")
        elif line.lstrip("#").split()[:1] == ["(B)"]:
            if "(us)" not in line:
                raise CalibrationError(f"units {line.strip('# ')}", place=where, remedy="times are wanted in (us)")
        elif not line.startswith("#") and _is_row(line.split()) and (stated is not None or refused is None):
            cells, operation = _cells(line.split(), columns, where, stated)
            rows.setdefault(operation, []).append(cells)
    if not rows and refused is not None:
        raise refused
    tables = rows or {Operation.ALLREDUCE: []}
    return [table_of(place, cells, header, operation=operation) for operation, cells in tables.items()]


def parse_program(program: str) -> Operation | None:
    """Return the operation of an nccl-tests program, as `all_gather_perf` or RCCL's; None where it is none of ours."""
    name = program.removesuffix("_perf")
    try:
        return Operation.named(name)
    except UnknownNameError:
        return Operation.ALLREDUCE if "all_reduce" in program or "allreduce" in program.lower() else None


def operation_in(redop: str, root: str, stated: Operation | None, place: str) -> Operation:
    """Return the operation of a row, whose program or header states one, or else what it reduces and its root.

    Raises:
        CalibrationError: a row that reduces nothing and has no root, where no operation is stated.
    """
    if stated is not None:
        return stated
    if root not in ("-1", ""):
        return Operation.BROADCAST if redop == "none" else Operation.REDUCE
    if redop == "none":
        raise _make_operation_error(redop, place)
    return Operation.ALLREDUCE


def refuse_program(program: str, place: str) -> Operation | None:
    """Return the operation of a program of nccl-tests; None of another program.

    Raises:
        CalibrationError: a program of nccl-tests that measures none of the operations.
    """
    operation = parse_program(program)
    if operation is None and program.endswith("_perf"):
        raise _make_operation_error(program, place)
    return operation


def _make_operation_error(name: str, place: str) -> CalibrationError:
    remedy = f"name it in the header, `# operation: all_gather`; known: {', '.join(Operation)}"
    return CalibrationError(f"{name} names no operation that is modelled", place=place, remedy=remedy)


def version_text(code: int) -> str:
    """Return the version that NCCL_VERSION_CODE states: 2804 is 2.8.4, 22907 is 2.29.7.

    Source: NCCL `src/nccl.h.in`.
    """
    hundreds = 10_000 if code >= 10_000 else 1_000
    return f"{code // hundreds}.{code % hundreds // 100}.{code % 100}"


def find_forced_algorithm(lines: Iterable[str]) -> str | None:
    """Return the one algorithm that NCCL_ALGO allowed, by an environment or NCCL's own log."""
    return next((match[1].lower() for line in lines if (match := _ALGORITHM.search(line))), None)


def _without_prefix(line: str) -> str:
    rest = line[match.end() :] if (match := _PREFIX.match(line)) else line
    return rest.lstrip()


def _names(line: str) -> list[str] | None:
    names = line.lstrip("#").split()
    return names if {"size", "bytes"} & set(names[:1]) and {"time", "cputime"} & set(names) else None


def _is_row(words: Sequence[str]) -> bool:
    return bool(words and _ROW.fullmatch(words[0]) and (len(words) == 1 or _ROW.fullmatch(words[1])))


def _cells(
    words: Sequence[str], columns: Sequence[str] | None, place: str, stated: Operation | None
) -> tuple[Cells, Operation]:
    if columns is None:
        columns = _NEW if words[4:5] == ["-1"] else _OLD
    at = columns.index("time")
    if len(words) <= at:
        raise CalibrationError(f"{len(words)} cells, time is number {at + 1}", place=place)
    redop_at = next((columns.index(name) for name in ("redop", "op") if name in columns), None)
    redop = "sum" if redop_at is None else words[redop_at]
    root = words[columns.index("root")] if "root" in columns else ""
    named = place if redop_at is None else f"{place}, column {columns[redop_at]}"
    operation = operation_in(redop, root, stated, named)
    algbw, busbw = (
        words[i] if i < len(columns) and columns[i] == name and i < len(words) else None for i, name in _rates(at)
    )
    unit_s = 1e-3 if columns[0] == "bytes" else 1e-6
    # A row with one time has it in the first one's place, whatever the header says.
    other = next((i for i in range(at + 1, len(columns)) if columns[i] == "time" and len(words) > i + 2), None)
    in_place = None if other is None else words[other]
    cells = Cells(words[0], words[at], place, unit_s, algbw, busbw, in_place=in_place, in_place_unit_s=unit_s)
    return cells, operation


def _rates(time_at: int) -> tuple[tuple[int, str], tuple[int, str]]:
    return (time_at + 1, "algbw"), (time_at + 2, "busbw")


def _header(lines: Sequence[str], place: str) -> dict[str, str]:
    """Return what the lines around the table state: ranks, nodes, NCCL's version, GPUs a process, the algorithm."""
    ranks = [int(match[1]) for line in lines if (match := _RANK.match(line))]
    machines = {match[1] for line in lines if line.startswith("#") and (match := _HOST.search(line))}
    groups = {match[1] for line in lines if (match := _GROUP.match(line))}
    if len(groups) > 1:
        what = f"collectives of {len(groups)} groups at once"
        raise CalibrationError(what, place=place, remedy="measure one, without NCCL_TESTS_SPLIT")
    header = {"ranks": str(max(ranks) + 1), "nodes": str(len(machines) or 1)} if ranks else {}
    for pattern, key in ((_VERSION, "nccl"), (_MODE, "mode"), (_LIBRARY, "library")):
        if match := next((match for line in lines if (match := pattern.search(line))), None):
            header[key] = match[1]
    if library := header.pop("library", None):
        header.setdefault("nccl", version_text(int(library)))
    algorithm = find_forced_algorithm(lines)
    return header if algorithm is None else header | {"algorithm": algorithm}
