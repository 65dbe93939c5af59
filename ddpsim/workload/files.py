"""Workload files, `ddpsim.workload/1`: read with every error placed, written whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddpsim import shipped
from ddpsim.bucketing import Parameter
from ddpsim.bucketing.assign import FrozenParameter
from ddpsim.errors import UnknownNameError, WorkloadError
from ddpsim.files import display_name, encode_text, json_text, read_json, write_whole
from ddpsim.files.compiled import read_compiled
from ddpsim.options.input_stage import InputStage
from ddpsim.workload.profile import Buffer, ForwardUse, Phase, Seconds, Workload

if TYPE_CHECKING:
    from ddpsim.workload.schema import WorkloadFile

_TIMED = "timed "
"""How the file marks a device whose pace layers that sleep keep."""
_REMEDY = "make the file again with `python -m ddpexec capture` or `ddpsim workload import`"
_PHASES = ("forward", "backward", "optimizer")
_OPTIONAL = ("activations_bytes", "optimizer_kind", "autocast_dtype")
_AS_THEY_ARE = (
    "name", "precision", "batch_size", "threads", "estimated", "gradient_hook_s", "gradient_ready_s", "provenance",
    "arithmetic_share", "ranks", "sequence_length", *_OPTIONAL,
)  # fmt: skip
"""Fields of a workload that its file has as they are."""


RECORDED = "recorded"
"""Behind a name and @: at the pace that it was recorded or estimated at."""


def load_workload(name_or_path: str | Path) -> Workload:
    """Return the workload in a file, `.json` or `.json.gz`, `-` for standard input, or the shipped one of that name.

    Args:
        name_or_path: with `@H200` behind it, at that GPU's pace; `@recorded` is as it is.

    Raises:
        UnknownNameError: neither a file nor a shipped name, or no such GPU; the nearest names are given.
        WorkloadError: truncated, not JSON, another schema, a field missing or of the wrong kind, shapes that disagree;
            or a GPU behind a workload whose operators are not known.
    """
    path, where = locate_workload(name_or_path)
    workload = read_workload(path, name_or_path)
    if where in (None, RECORDED):
        return workload
    from ddpsim.workload.gpus import gpu_named
    from ddpsim.workload.on_gpu import estimate_on_gpu

    return estimate_on_gpu(with_operators(workload), gpu_named(str(where)))


def locate_workload(name_or_path: str | Path) -> tuple[Path, str | None]:
    """Return the path of a workload's file, and what stands behind the `@` of `resnet50@H200`; None where nothing does.

    Raises:
        UnknownNameError: as `load_workload`.
    """
    name = str(name_or_path)
    try:
        return shipped.find("workload", name), None
    except UnknownNameError:
        base, _, where = name.rpartition("@")
        if not base:
            raise
    # Of a shipped name's whole form, `resnet50@a100-amp-b32`, the nearest whole forms help more than GPUs, or its part.
    whole = None
    if "-" in where and not shipped.is_path(base):
        from ddpsim.gpus.table import find_shipped_gpu

        whole = None if find_shipped_gpu(where) else UnknownNameError.among("workload", name, shipped.names("workload"))
    try:
        path = shipped.find("workload", base)
    except UnknownNameError as error:
        raise (whole or error) from None
    if whole and base in shipped.names("workload"):
        raise whole
    return path, where


def read_workload(path: Path, name: str | Path) -> Workload:
    """Return the workload in the file at `path`, which errors call `name`.

    Raises:
        WorkloadError: as `load_workload`.
    """

    def read(file: Path) -> Workload:
        if file.suffix == ".py":
            remedy = f"estimate its step: `python -m ddpexec estimate --step {file.stem}:FUNCTION --gpu ... -o w.json`"
            raise WorkloadError("is a program, not a workload", place=display_name(name), remedy=remedy)
        return workload_from(read_json(file, WorkloadError, _REMEDY, wanted="a workload"), display_name(name))

    return read_compiled(path, read) if shipped.has("workload", path) else read(path)


def with_operators(workload: Workload) -> Workload:
    """Return `workload` with the operators of the shipped model it is of, where it has none and there is such a model.

    A shipped model has its operators in one file, that of its bare name: `resnet50@a100-amp-b32` is of `resnet50`.
    """
    base = workload.name.partition("@")[0]
    if workload.operators is not None or workload.one_clock or base not in shipped.names("workload"):
        return workload
    model = read_workload(shipped.path("workload", base), base)
    ours, theirs = ([(p.name, p.shape) for p in each.parameters] for each in (workload, model))
    if model.operators is None or ours != theirs:
        return workload
    dtypes = model.operators.dtypes or tuple(parameter.dtype for parameter in model.parameters)
    return replace(workload, operators=replace(model.operators.with_batch(workload.batch_size), dtypes=dtypes))


def save_workload(workload: Workload, path: str | Path) -> None:
    """Write `workload` to `path`, gzipped where it ends in `.gz`; the same workload gives the same bytes."""
    write_whole(path, encode_text(json_text(workload_document(workload)), path))


def workload_document(workload: Workload) -> dict[str, object]:
    """Return `workload` as the JSON document `ddpsim.workload/1`."""
    from ddpsim.workload.schema import WorkloadFile

    return {
        "schema": WorkloadFile.SCHEMA,
        "name": workload.name,
        "device": workload.device_label,
        "precision": workload.precision,
        "batch_size": workload.batch_size,
        "threads": workload.threads,
        "estimated": workload.estimated,
        "parameters": [
            {"name": p.name, "shape": list(p.shape), "dtype": p.dtype, "device": p.device, "sparse": p.sparse}
            for p in workload.parameters
        ],
        "buffers": [
            {
                "name": b.name,
                "shape": list(b.shape),
                "dtype": b.dtype,
                **({} if b.device is None else {"device": b.device}),
            }
            for b in workload.buffers
        ],
        **{
            phase: {
                "host_s": getattr(workload, phase).host_s.tolist(),
                "device_s": getattr(workload, phase).device_s.tolist(),
            }
            for phase in _PHASES
        },
        "gradient_hook_s": nullable(workload.gradient_hook_s),
        "gradient_ready_s": nullable(workload.gradient_ready_s),
        "synchronises": list(workload.synchronises),
        "arithmetic_share": workload.arithmetic_share,
        **({} if workload.ranks == 1 else {"ranks": workload.ranks}),
        **_optional_fields(workload),
        "provenance": dict(workload.provenance),
    }


def _optional_fields(workload: Workload) -> dict[str, object]:
    """Return what only some workloads know."""
    from ddpsim.workload.schema import operators_document

    known: dict[str, object] = {}
    if (use := workload.forward_use_s) is not None:
        host, device = nullable(np.array([use.host_s, use.device_s]))
        known["forward_use_s"] = {"host": host, "device": device}
    known |= {key: told for key in _OPTIONAL if (told := getattr(workload, key)) is not None}
    if workload.input_stage is not None:
        known["input_stage"] = workload.input_stage.document()
    if workload.sequence_length is not None:
        known["sequence_length"] = workload.sequence_length
    if workload.frozen:
        known["frozen"] = [
            {"name": p.name, "shape": list(p.shape), "dtype": p.dtype, "device": p.device, "before": p.before}
            for p in workload.frozen
        ]
    if workload.devices:
        known["devices"] = [part.document() for part in workload.devices]
    if workload.operators is not None:
        known["operators"] = operators_document(workload.operators)
    return known


def workload_from(document: object, place: str) -> Workload:
    """Return the workload of a parsed document; `place` names it in errors.

    Raises:
        WorkloadError: another schema, a key missing or of the wrong kind, shapes that disagree.
    """
    from ddpsim.documents import read_as
    from ddpsim.workload.schema import WorkloadFile

    read = read_as(WorkloadFile, document, place, WorkloadError, _REMEDY)
    try:
        return _workload(read)
    except WorkloadError as error:
        error.at(place)


def _workload(read: WorkloadFile) -> Workload:
    from ddpsim.workload.schema import operators_from

    phases: dict[str, Any] = {}
    for phase in _PHASES:
        found = getattr(read, phase)
        phases[phase] = Phase(found.host_s, found.device_s)
    return Workload(
        device=read.device.removeprefix(_TIMED),
        timed=read.device.startswith(_TIMED),
        **{key: getattr(read, key) for key in _AS_THEY_ARE},
        **phases,
        parameters=tuple(Parameter(p.name, tuple(p.shape), p.dtype, p.device, p.sparse) for p in read.parameters),
        buffers=tuple(Buffer(b.name, tuple(b.shape), b.dtype, b.device) for b in read.buffers),
        synchronises=tuple(read.synchronises),
        forward_use_s=None if (use := read.forward_use_s) is None else ForwardUse(use.host, use.device),
        input_stage=None if read.input_stage is None else InputStage(**dict(read.input_stage)),
        operators=operators_from(read.operators, len(read.parameters), len(read.frozen)),
        frozen=tuple(FrozenParameter(p.name, tuple(p.shape), p.dtype, p.device, before=p.before) for p in read.frozen),
        devices=tuple(each.part() for each in read.devices),
    )


def nullable(times: Seconds) -> list[list[float | None]]:
    """Return a table of times as JSON, with null for NaN."""
    return [[None if value != value else value for value in row] for row in times.tolist()]
