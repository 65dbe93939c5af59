"""Workload files, `ddpsim.workload/1`: read with every error placed, written whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from ddpsim import shipped
from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import DTYPE_BYTES
from ddpsim.errors import WorkloadError
from ddpsim.files import compress, json_text, read_json, write_whole
from ddpsim.workload.profile import Buffer, ForwardUse, Phase, Seconds, Workload

SCHEMA = "ddpsim.workload/1"
_MOST = 1 << 63
"""No count, and no number of elements, is as large."""
_REMEDY = "make the file again with `python -m ddpexec capture` or `ddpsim workload import`"


def load_workload(name_or_path: str | Path) -> Workload:
    """Return the workload in a file, `.json` or `.json.gz`, or the shipped one of that name.

    Raises:
        UnknownNameError: neither a file nor a shipped name; the nearest names are given.
        WorkloadError: truncated, not JSON, another schema, a field missing or of the wrong kind, shapes that disagree.
    """
    path = shipped.find("workload", str(name_or_path))
    return workload_from(read_json(path, WorkloadError, _REMEDY), str(name_or_path))


def save_workload(workload: Workload, path: str | Path) -> None:
    """Write `workload` to `path`, gzipped where it ends in `.gz`; the same workload gives the same bytes."""
    text = json_text(workload_document(workload))
    write_whole(path, compress(text) if str(path).endswith(".gz") else text)


def workload_document(workload: Workload) -> dict[str, object]:
    """Return `workload` as the JSON document `ddpsim.workload/1`."""
    return {
        "schema": SCHEMA,
        "name": workload.name,
        "device": workload.device,
        "precision": workload.precision,
        "batch_size": workload.batch_size,
        "threads": workload.threads,
        "estimated": workload.estimated,
        "parameters": [
            {"name": p.name, "shape": list(p.shape), "dtype": p.dtype, "device": p.device, "sparse": p.sparse}
            for p in workload.parameters
        ],
        "buffers": [{"name": b.name, "shape": list(b.shape), "dtype": b.dtype} for b in workload.buffers],
        **{
            phase: {
                "host_s": getattr(workload, phase).host_s.tolist(),
                "device_s": getattr(workload, phase).device_s.tolist(),
            }
            for phase in ("forward", "backward", "optimizer")
        },
        "gradient_hook_s": _nullable(workload.gradient_hook_s),
        "gradient_ready_s": _nullable(workload.gradient_ready_s),
        "synchronises": list(workload.synchronises),
        "arithmetic_share": workload.arithmetic_share,
        **({} if workload.ranks == 1 else {"ranks": workload.ranks}),
        **_known(workload),
        "provenance": dict(workload.provenance),
    }


def _known(workload: Workload) -> dict[str, object]:
    """Return what only some workloads know."""
    known: dict[str, object] = {}
    if (use := workload.forward_use_s) is not None:
        host, device = _nullable(np.array([use.host_s, use.device_s]))
        known["forward_use_s"] = {"host": host, "device": device}
    if workload.activations_bytes is not None:
        known["activations_bytes"] = workload.activations_bytes
    if workload.optimizer_kind is not None:
        known["optimizer_kind"] = workload.optimizer_kind
    return known


def workload_from(document: object, place: str) -> Workload:
    """Return the workload of a parsed document; `place` names it in errors.

    Raises:
        WorkloadError: another schema, a field missing or of the wrong kind, shapes that disagree.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise WorkloadError("not a workload file", place=place, remedy=f'expected "schema": "{SCHEMA}"; {_REMEDY}')
    try:
        return _workload(_Fields(document))
    except WorkloadError as error:
        error.at(place)


def _workload(fields: _Fields) -> Workload:
    hooks = fields.times("gradient_hook_s", 2)
    return Workload(
        name=fields.text("name"),
        device=fields.text("device"),
        precision=fields.text("precision"),
        batch_size=fields.count("batch_size"),
        threads=None if fields.get("threads") is None else fields.count("threads"),
        estimated=fields.boolean("estimated"),
        parameters=tuple(_parameter(entry) for entry in fields.entries("parameters")),
        buffers=tuple(_buffer(entry) for entry in fields.entries("buffers")),
        forward=_phase(fields.object("forward")),
        backward=_phase(fields.object("backward")),
        optimizer=_phase(fields.object("optimizer")),
        gradient_hook_s=hooks,
        gradient_ready_s=fields.times("gradient_ready_s", 2),
        synchronises=tuple(fields.list("synchronises")),  # the type checks the words
        provenance=fields.object("provenance").values,
        arithmetic_share=fields.number("arithmetic_share") if "arithmetic_share" in fields.values else 1.0,
        ranks=fields.count("ranks") if "ranks" in fields.values else 1,
        forward_use_s=_forward_use(fields.object("forward_use_s")) if "forward_use_s" in fields.values else None,
        activations_bytes=fields.natural("activations_bytes") if "activations_bytes" in fields.values else None,
        optimizer_kind=fields.text("optimizer_kind") if "optimizer_kind" in fields.values else None,
    )


def _parameter(fields: _Fields) -> Parameter:
    sparse = fields.boolean("sparse") if "sparse" in fields.values else False
    return Parameter(fields.text("name"), fields.shape(), fields.dtype(), fields.text("device"), sparse)


def _buffer(fields: _Fields) -> Buffer:
    return Buffer(fields.text("name"), fields.shape(), fields.dtype())


def _phase(fields: _Fields) -> Phase:
    return Phase(fields.times("host_s", 1), fields.times("device_s", 1))


def _forward_use(fields: _Fields) -> ForwardUse:
    return ForwardUse(fields.times("host", 1), fields.times("device", 1))


def _nullable(times: Seconds) -> list[list[float | None]]:
    return [[None if value != value else value for value in row] for row in times.tolist()]


class _Fields:
    """One JSON object, whose fields are taken by kind; what does not fit is an error with its place."""

    def __init__(self, values: Mapping[str, object], place: str = "") -> None:
        self.values, self._place = values, place

    def get(self, key: str) -> object:
        if key not in self.values:
            raise WorkloadError("the field is missing", place=self._at(key), remedy=_REMEDY)
        return self.values[key]

    def text(self, key: str) -> str:
        value = self.get(key)
        return value if isinstance(value, str) and value else self._fail(key, "a text")

    def count(self, key: str) -> int:
        value = self.get(key)
        return value if _is_count(value) and value else self._fail(key, "a whole number above 0")  # type: ignore[return-value]

    def natural(self, key: str) -> int:
        value = self.get(key)
        return value if _is_count(value) else self._fail(key, "a whole number")  # type: ignore[return-value]

    def number(self, key: str) -> float:
        value = self.get(key)
        fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _MOST
        return float(value) if fits else self._fail(key, "a number")  # type: ignore[arg-type]

    def boolean(self, key: str) -> bool:
        value = self.get(key)
        return value if isinstance(value, bool) else self._fail(key, "true or false")

    def list(self, key: str) -> Sequence[str]:
        value = self.get(key)
        fits = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        return value if fits else self._fail(key, "a list of texts")  # type: ignore[return-value]

    def object(self, key: str) -> _Fields:
        value = self.get(key)
        return _Fields(value, self._at(key)) if isinstance(value, dict) else self._fail(key, "an object")

    def entries(self, key: str) -> Sequence[_Fields]:
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            self._fail(key, "a list of objects")
        return [_Fields(entry, f"{self._at(key)}.{number}") for number, entry in enumerate(value)]

    def shape(self) -> tuple[int, ...]:
        value = self.get("shape")
        fits = isinstance(value, list) and all(_is_count(size) for size in value) and math.prod(value) < _MOST
        return tuple(value) if fits else self._fail("shape", "a list of whole numbers")  # type: ignore[arg-type]

    def dtype(self) -> str:
        value = self.get("dtype")
        known = isinstance(value, str) and value in DTYPE_BYTES
        return value if known else self._fail("dtype", f"one of {', '.join(DTYPE_BYTES)}")  # type: ignore[return-value]

    def times(self, key: str, dimensions: int) -> Seconds:
        """Return seconds, `null` as NaN, as an array of `dimensions`; rows of unequal length are an error."""
        value = self.get(key)
        rows = value if dimensions == 2 else [value]
        if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
            self._fail(key, "a list of lists of seconds" if dimensions == 2 else "a list of seconds")
        for number, row in enumerate(rows):
            if not {*map(type, row)} <= {float, int, type(None)}:
                wrong = next(entry for entry in row if type(entry) not in (float, int, type(None)))
                place = f"{key}.{number}" if dimensions == 2 else key
                raise WorkloadError(f"{wrong!r} is not a number", place=self._at(place), remedy="give seconds, or null")
            if len(row) != len(rows[0]):
                what = f"{len(row)} times, the first iteration has {len(rows[0])}"
                raise WorkloadError(what, place=self._at(f"{key}.{number}"))
        try:
            return np.array(value, dtype=np.float64)
        except OverflowError as error:
            what = "a time is larger than any number"
            raise WorkloadError(what, place=self._at(key), remedy="give seconds, or null") from error

    def _at(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def _fail(self, key: str, expected: str) -> NoReturn:
        shown = repr(self.values[key])
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise WorkloadError(f"{shown} is not {expected}", place=self._at(key))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST
