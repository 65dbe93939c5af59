"""Measured tables as JSON: what nccl-tests writes with `-J`, and the microbenchmark.

Source of the keys: nccl-tests 2.18 `src/util.cu`. There a process has one entry in `config.devices` whatever the
number of its GPUs, a time that is no number is the text "nan", and `root` is text.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddpsim.calibrating.measured.nccl_tests import find_forced_algorithm, operation_in, refuse_program, version_text
from ddpsim.calibrating.measured.table import REMEDY, Cells, MeasuredTable, as_float, operation_of, table_of
from ddpsim.common.errors import CalibrationError
from ddpsim.common.files import parse_json
from ddpsim.common.operation import Operation


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
    found = {str(name): as_float(value) for name, value in costs if _is_number(value)}
    return table_of(place, rows, header, ddp=found, operation=stated)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cells(entry: object, place: str, stated: Operation | None) -> Cells:
    if not isinstance(entry, dict):
        raise CalibrationError(f"{entry!r} is not a row", place=place)
    operation_in(str(entry.get("redop")), "", stated, f"{place}.redop")
    beside = entry.get("in_place")
    for key in ("out_of_place", "in_place"):
        part = entry.get(key)
        if isinstance(part, dict) and part.get("time") is not None:
            return Cells(
                size=entry.get("size"),
                time=part["time"],
                place=place,
                algbw=part.get("alg_bw"),
                busbw=part.get("bus_bw"),
                in_place=beside.get("time") if isinstance(beside, dict) and beside is not part else None,
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
