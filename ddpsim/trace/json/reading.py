"""Files to a `Trace`, with errors that name file and event."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpsim.common.documents.records import read_as
from ddpsim.common.errors import TraceError
from ddpsim.common.files import read_json
from ddpsim.trace.json.models import RankFile, RunFile, iteration_from
from ddpsim.trace.json.schema import COLLECTIVE, KERNEL, PATH, RECORD, SCHEMA
from ddpsim.trace.records import Iteration, PathSpan, Span, Trace

_REMEDY = "run again with --out (or --trace) to write it anew"
_MOST = 1 << 63
"""No time, count or size is as large."""
_MOST_BYTES = 1 << 30
"""Bytes of a rank's file, which is read whole; chosen by hand, thousands of iterations."""


def read_trace(directory: str | Path) -> Trace:
    """Read the trace that `write_trace`, or the ranks of a run, left under `directory`.

    Ranks that never wrote are missing from the result; without a `run.json` (a run that broke off) provenance is empty.

    Raises:
        TraceError: no such folder, no rank file in it, files of runs of different sizes, a file truncated or malformed;
            the message names file and place.
    """
    files = rank_files(directory)
    iterations: list[Iteration] = []
    spans: list[Span] = []
    path: list[PathSpan] = []
    world_size, backend, provenance = 0, "", _provenance(Path(directory))
    for file in files.values():
        rank, size, backend, events = _open(file)
        if world_size not in (0, size):
            what = f"of a run of {size} ranks, the files before it of one of {world_size}"
            raise TraceError(what, place=file, remedy="remove the older, or give each run a folder of its own")
        world_size = size
        its, rank_spans, waited = _parse(events, rank, file)
        iterations += its
        spans += rank_spans
        path += waited
    iterations.sort(key=lambda it: (it.rank, it.index))
    spans.sort(key=lambda span: (span.rank, span.start_s))
    return Trace(world_size, backend, iterations, spans, provenance, path)


def read_rank(path: str | Path) -> tuple[int, Trace]:
    """Return the rank whose file this is, and its trace, with the provenance of the `run.json` beside it.

    Raises:
        TraceError: not such a file, truncated or malformed.
    """
    rank, world_size, backend, events = _open(str(path))
    iterations, spans, waited = _parse(events, rank, str(path))
    return rank, Trace(world_size, backend, iterations, spans, _provenance(Path(path).parent), waited)


def rank_files(directory: str | Path) -> dict[int, str]:
    """Return the rank files under `directory` by rank, as HolisticTraceAnalysis' `trace_files` takes them.

    HolisticTraceAnalysis takes every JSON in a `trace_dir` for a rank's trace, `run.json` too: give it these files.

    Raises:
        TraceError: no such folder, or no rank file in it.
    """
    folder, remedy = Path(directory), "give the folder that --out or --trace wrote"
    if not os.path.isdir(folder):
        raise TraceError("no such folder", place=str(directory), remedy=remedy)
    files = {rank: str(file) for rank, file in files_by_rank(folder).items()}
    if not files:
        raise TraceError("holds no rank*.json.gz", place=str(directory), remedy=remedy)
    return files


def files_by_rank(folder: Path) -> dict[int, Path]:
    """Return the rank files in `folder` by rank, ascending."""
    files = folder.iterdir() if os.path.isdir(folder) else ()
    matches = ((re.fullmatch(r"rank([0-9]+)\.json\.gz", file.name), file) for file in files)
    return dict(sorted((int(match[1]), file) for match, file in matches if match))


def _provenance(folder: Path) -> dict[str, object]:
    path = folder / "run.json"
    if not os.path.isfile(path):
        return {}
    return dict(read_as(RunFile, read_json(path, TraceError, _REMEDY), str(path), TraceError, _REMEDY).provenance)


def _open(path: str) -> tuple[int, int, str, Sequence[object]]:
    """Return rank, world size, backend and events of a rank file."""
    document = read_json(path, TraceError, _REMEDY, most=_MOST_BYTES)
    ours = document.get("ddpsim") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(ours, dict) or ours.get("schema") != SCHEMA:
        remedy = f'expected "ddpsim": {{"schema": "{SCHEMA}"}}; take other traces in with `ddpsim workload import`'
        raise TraceError("not a trace of ddpsim or ddpexec", place=path, remedy=remedy)
    read = read_as(RankFile, document, path, TraceError, _REMEDY)
    info = read.distributedInfo
    return info.rank, info.world_size, info.backend, read.traceEvents


def _parse(events: Sequence[object], rank: int, file: str) -> tuple[list[Iteration], list[Span], list[PathSpan]]:
    streams: dict[int, str] = {}
    iterations: list[Iteration] = []
    spans: list[Span] = []
    path: list[PathSpan] = []
    for number, event in enumerate(events):
        try:
            if isinstance(event, dict) and event.get("cat") == PATH:
                path += _path_span(event, streams)
            else:
                _parse_event(event, rank, streams, iterations, spans, f"{file}: traceEvents.{number}")
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else f"malformed: {error}"
            raise TraceError(what, place=f"{file}: traceEvents.{number}", remedy=_REMEDY) from error
    return iterations, spans, path


def _path_span(event: Mapping[str, object], streams: Mapping[int, str]) -> list[PathSpan]:
    """Return what an event of the longest path is: a stretch of it, or nothing where it is an arrow."""
    if event["ph"] != "X":
        return []
    start_s = _number(event["ts"]) * 1e-6
    stream = streams[int(_number(event["tid"]))].partition(": ")[2]
    end_s = start_s + _number(event["dur"]) * 1e-6
    return [PathSpan(stream=stream, cause=str(event["name"]), start_s=start_s, end_s=end_s)]


def _parse_event(
    event: object, rank: int, streams: dict[int, str], iterations: list[Iteration], spans: list[Span], place: str
) -> None:
    if not isinstance(event, dict):
        raise TypeError(f"{event!r} is not an object")
    phase, args = event["ph"], event.get("args", {})
    if phase == "M":
        if event["name"] == "thread_name":
            streams[int(event["tid"])] = str(args["name"])
    elif phase == "b":
        spans.append(_span(event, rank, streams, {k: v for k, v in args.items() if k != "duration_s"}, False))
    elif phase == "X" and RECORD in args:
        iterations.append(iteration_from(args[RECORD], f"{place}.args.{RECORD}", TraceError, _REMEDY))
    # Others were added for the tools' sake: a launch, or the kernel under an annotation.
    elif phase == "X" and event["cat"] != "cuda_runtime" and not str(event["name"]).startswith(KERNEL):
        category = event["cat"]
        kernel = category in ("kernel", "gpu_user_annotation")
        added = ("device", "stream", "correlation") if category == "kernel" else ("backend",)
        dropped = added if kernel or str(event["name"]).startswith(COLLECTIVE) else ()
        spans.append(_span(event, rank, streams, {k: v for k, v in args.items() if k not in dropped}, kernel))


def _span(
    event: Mapping[str, object], rank: int, streams: Mapping[int, str], args: dict[str, object], kernel: bool
) -> Span:
    start_us, tid = _number(event["ts"]), int(_number(event["tid"]))
    event_args = event.get("args")
    whole = event_args.get("duration_s") if isinstance(event_args, dict) and event["ph"] == "b" else None
    duration_s = _number(event["dur"]) * 1e-6 if whole is None else _number(whole)
    name = str(event["name"])
    return Span(
        rank=rank,
        stream=streams[tid],
        name=name,
        start_s=start_us * 1e-6,
        duration_s=duration_s,
        kernel=kernel,
        args=args,
    )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
        raise TypeError(f"{value!r} is not a number")
    return value
