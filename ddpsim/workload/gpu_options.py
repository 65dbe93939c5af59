"""A GPU from command-line options: one of the table or a file with some figures replaced, or one of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpsim.common.errors import InputError, UnknownNameError
from ddpsim.common.units import parse_arithmetic, parse_bandwidth, parse_size
from ddpsim.topology.gpus.table import PRECISIONS, GpuSpec, find_shipped_gpu, gpu_from, read_gpu

UNNAMED = "GPU"
"""What a GPU is called that options alone describe."""


def gpu_with(
    name: str | None,
    file: Path | None,
    memory_bandwidth: str | None,
    peaks: Sequence[str],
    memory: str | None,
    multiprocessors: int | None,
) -> GpuSpec:
    """Return the GPU that options describe.

    Args:
        name: one of the table whose figures are replaced, or what a new one is called; None is `UNNAMED`.
        file: of a GPU whose figures are replaced.
        memory_bandwidth: `1792GB/s`.
        peaks: `amp=504T` each.
        memory: `96GiB`.
        multiprocessors: enabled ones.

    Raises:
        InputError: a new GPU without bandwidth or without any peak, a precision that does not exist, a quantity
            without its unit.
    """
    base = read_gpu(file) if file is not None else None if name is None else find_shipped_gpu(name)
    known = dict(_peak(text) for text in peaks)
    figures: dict[str, object] = {}
    if memory_bandwidth is not None:
        parse_bandwidth(memory_bandwidth, "--memory-bandwidth")
        figures["memory_bandwidth"] = memory_bandwidth
    if memory is not None:
        parse_size(memory, "--memory")
        figures["memory"] = memory
    if multiprocessors is not None:
        figures["multiprocessors"] = multiprocessors
    if base is None:
        _check_new(name, memory_bandwidth, peaks)
        return gpu_from({"name": name or UNNAMED, "peaks": known} | figures, "--gpu")
    if not figures and not known:
        return base
    changed = gpu_from({"name": base.name, "memory_bandwidth": "1GB/s", "peaks": known or {"fp32": "1T"}} | figures, "")
    update: dict[str, Any] = {key: getattr(changed, key) for key in figures}
    if known:
        update["peaks"] = {**base.peaks, **{key: changed.peaks[key] for key in changed.peaks if key in known}}
    stated = ", ".join([*figures, *(f"peak of {key}" for key in known)])
    return replace(base, **update, sources=(f"{stated} given by the user", *base.sources))


def _peak(text: str) -> tuple[str, str]:
    precision, _, peak = text.partition("=")
    if precision not in PRECISIONS or not peak:
        error = UnknownNameError.among("precision", precision, PRECISIONS)
        what = error.message if precision not in PRECISIONS else f"{text!r} gives no figure"
        raise InputError(what, place="--peak", remedy="write e.g. amp=504T, for one of " + ", ".join(PRECISIONS))
    parse_arithmetic(peak, "--peak")
    return precision, peak


def _check_new(name: str | None, memory_bandwidth: str | None, peaks: Sequence[str]) -> None:
    whose = "a GPU that is described by options" if name is None else f"{name}, which is not in the table,"
    if memory_bandwidth is None:
        raise InputError(f"{whose} lacks its memory's bandwidth", place="--memory-bandwidth", remedy="e.g. 1792GB/s")
    if not peaks:
        raise InputError(f"{whose} lacks every peak", place="--peak", remedy="e.g. --peak fp32=126T --peak amp=504T")
