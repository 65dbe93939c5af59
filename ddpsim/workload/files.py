"""Workload files, `ddpsim.workload/1`: read with every error placed, written whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpsim.common import shipped
from ddpsim.common.compiled import read_compiled
from ddpsim.common.documents.fields import document_of
from ddpsim.common.errors import UnknownNameError, WorkloadError
from ddpsim.common.files import display_name, encode_text, json_text, read_json, write_whole
from ddpsim.workload.profile import Workload

_TIMED = "timed "
"""How the file marks a device whose pace layers that sleep keep."""
_REMEDY = "make the file again with `python -m ddpexec capture` or `ddpsim workload import`"


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
        from ddpsim.topology.gpus.table import find_shipped_gpu

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


def workload_document(workload: Workload) -> dict[str, Any]:
    """Return `workload` as the JSON document `ddpsim.workload/1`."""
    document: dict[str, Any] = document_of(replace(workload, device=workload.device_label))
    return document


def workload_from(document: object, place: str) -> Workload:
    """Return the workload of a parsed document; `place` names it in errors.

    Raises:
        WorkloadError: another schema, a key missing or of the wrong kind, shapes that disagree.
    """
    from ddpsim.common.documents.records import read_as

    read = read_as(Workload, document, place, WorkloadError, _REMEDY)
    if read.operators is not None:
        try:
            read.operators.check(len(read.parameters), len(read.frozen))
        except WorkloadError as error:
            error.at(place)
    if not read.device.startswith(_TIMED):
        return read
    return replace(read, device=read.device.removeprefix(_TIMED), timed=True)
