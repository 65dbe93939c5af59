"""A campaign's record: its output folder reduced to what the numbers are computed from, and that folder again.

    campaign.yaml            the file that was run
    networks/NAME/           as the campaign left them: topology, microbenchmarks, constants
    workloads/HASH.json.gz   each workload once
    runs/NAME.json.gz        one configuration: its prediction, written before its runs, and its runs

Of a run's traces the record keeps, to the microsecond, every iteration of every rank, and rank 0's buckets with the
moment at which the last rank had arrived; spans, gradients and the other ranks' buckets are left out. `unpack` gives a
folder on which every command that reads a campaign's works as before.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from ddpexec.lab.campaign.campaign import find_finished
from ddpexec.lab.campaign.spec import Campaign, load_campaign
from ddpsim.common.documents.fields import Count, Text
from ddpsim.common.documents.records import read_as
from ddpsim.common.errors import InputError
from ddpsim.common.files import compress, file_name, json_text, read_json, write_whole
from ddpsim.trace.json import iteration_document, iteration_from, read_trace, write_trace
from ddpsim.trace.metrics import arrivals
from ddpsim.trace.records import BucketTimes, Iteration, Trace

SCHEMA = "ddpexec.record/1"
DERIVED = ("result", "validation")
"""Files of a configuration that are computed from the others."""
_FOR_A_MACHINE = ("command", "plan")
"""Provenance that names paths of one machine, or that the buckets and options say already."""
_REMEDY = "pack the campaign's folder again: python -m ddpexec campaign FILE.yaml --out DIR --pack RECORD"


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run: the part of its trace that a record stores."""

    world_size: Count
    backend: str
    iterations: tuple[Any, ...]
    provenance: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RecordFile:
    """One configuration: `documents` by name, its prediction among them, and its runs."""

    SCHEMA: ClassVar = SCHEMA
    KIND: ClassVar = "record of a configuration"

    configuration: Text
    mark: str
    workload: str
    documents: Mapping[str, Any]
    runs: tuple[RunEntry, ...]


def pack(file: Path, campaign: Campaign, folder: Path, record: Path) -> list[str]:
    """Write under `record` every configuration of `campaign`, read from `file`, that has its result in `folder`.

    What `record` held of another campaign goes.

    Returns:
        the names of those left out.

    Raises:
        InputError: none has a result, a file cannot be read, or the record is to replace the folder it is made from.
    """
    if record.resolve() == folder.resolve():
        raise InputError(
            "the record would replace what it is made from", place=str(record), remedy="name another folder"
        )
    done = [each for each in campaign.configurations if find_finished(each, folder) is not None]
    if not done:
        raise InputError("holds no finished configuration", place=str(folder), remedy="run the campaign first")
    # Everything is read before anything is removed: a file that cannot be read leaves the old record as it was.
    contents: dict[str, bytes] = {"campaign.yaml": file.read_bytes()}
    for bench in sorted({each.bench for each in done}):
        for path in sorted((folder / "networks" / bench).glob("*.*")):
            contents[f"networks/{bench}/{path.name}"] = path.read_bytes()
    for each in done:
        own = folder / "runs" / each.name
        workload = (own / "workload.json.gz").read_bytes()
        # Many configurations share a workload; its hash as name stores it once.
        name = f"workloads/{hashlib.sha256(workload).hexdigest()[:12]}.json.gz"
        contents[name] = workload
        document = {
            "schema": SCHEMA,
            "configuration": each.name,
            "mark": (own / "configuration.txt").read_text(),
            "workload": name,
            "documents": _documents(own),
            "runs": [_run(own / f"run{repeat}") for repeat in range(each.repeats)],
        }
        contents[f"runs/{each.name}.json.gz"] = compress(json.dumps(document, allow_nan=False, separators=(",", ":")))
    for part in ("networks", "workloads", "runs"):
        shutil.rmtree(record / part, ignore_errors=True)
    for name, content in contents.items():
        write_whole(record / name, content)
    return [each.name for each in campaign.configurations if each not in done]


def unpack(record: Path, folder: Path) -> Campaign:
    """Write under `folder` what the campaign of `record` had left there, and return the campaign.

    Raises:
        InputError: no record, or one that is damaged.
    """
    campaign = load_campaign(record / "campaign.yaml")
    with _check_readable(record):
        shutil.copytree(record / "networks", folder / "networks", dirs_exist_ok=True)
    for path in sorted((record / "runs").glob("*.json.gz")):
        document = read_as(RecordFile, read_json(path, InputError, _REMEDY), str(path), InputError, _REMEDY)
        with _check_readable(path):
            _unpack_one(document, {each.name for each in campaign.configurations}, record, folder)
    return campaign


@contextmanager
def _check_readable(path: Path) -> Iterator[None]:
    """Raise `InputError` with `path` as its place where it is no record, or a file that it names cannot be read."""
    try:
        yield
    except InputError as error:
        error.at(str(path))
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.strerror else str(error)
        raise InputError(f"cannot be read: {named}", place=str(path), remedy=_REMEDY) from error


def _unpack_one(document: RecordFile, known: Collection[str], record: Path, folder: Path) -> None:
    """Write one configuration's folder anew; the document is read and its names are checked before anything goes."""
    if document.configuration not in known:
        what = f"{document.configuration[:60]!r} is no configuration of this record's campaign"
        raise InputError(what, place="configuration", remedy=_REMEDY)
    own = folder / "runs" / file_name(document.configuration, "configuration")
    kind, _, workload = document.workload.partition("/")
    if kind != "workloads":
        raise InputError(f"{document.workload!r} is no file of the record", place="workload", remedy=_REMEDY)
    files: dict[str, str | bytes] = {
        "configuration.txt": document.mark,
        "workload.json.gz": (record / "workloads" / file_name(workload, "workload")).read_bytes(),
    }
    for name, content in document.documents.items():
        files[file_name(f"{name}.json", "documents")] = json_text(content)
    traces = [_trace(run, f"runs.{number}") for number, run in enumerate(document.runs)]
    shutil.rmtree(own, ignore_errors=True)
    for name, text in files.items():
        write_whole(own / name, text)
    for repeat, trace in enumerate(traces):
        write_trace(trace, own / f"run{repeat}")


def _documents(own: Path) -> dict[str, object]:
    names = sorted(path.name.removesuffix(".json") for path in own.glob("*.json"))
    return {name: read_json(own / f"{name}.json", InputError, _REMEDY) for name in names if name not in DERIVED}


def _run(folder: Path) -> dict[str, object]:
    trace = reduce_trace(read_trace(folder))
    return {
        "world_size": trace.world_size,
        "backend": trace.backend,
        "provenance": {key: value for key, value in trace.provenance.items() if key not in _FOR_A_MACHINE},
        "iterations": [iteration_document(it) for it in trace.iterations],
    }


def _trace(run: RunEntry, place: str) -> Trace:
    iterations = [
        iteration_from(each, f"{place}.iterations.{number}", InputError, _REMEDY)
        for number, each in enumerate(run.iterations)
    ]
    return Trace(run.world_size, run.backend, iterations, (), run.provenance)


def reduce_trace(trace: Trace) -> Trace:
    """Return what the numbers of `trace` are computed from, to the microsecond, from rank 0's first iteration on."""
    first, arrived = trace.ranks[0], arrivals(trace)
    zero_s = trace.of_rank(first)[0].start_s

    def kept() -> Iterator[Iteration]:
        for it in trace.iterations:
            buckets: tuple[BucketTimes, ...] = ()
            if it.rank == first:
                buckets = tuple(
                    replace(b, wire_s=arrived.get((it.index, n)) if b.wire_s is None else b.wire_s)
                    for n, b in enumerate(it.buckets)
                )
            yield replace(it, buckets=buckets, gradients=())

    rounded = [
        iteration_from(_round_to_microseconds(iteration_document(it), zero_s), "iterations", InputError, _REMEDY)
        for it in kept()
    ]
    return Trace(trace.world_size, trace.backend, rounded, (), trace.provenance)


def _round_to_microseconds(document: Mapping[str, Any], zero_s: float) -> dict[str, Any]:
    """Return an iteration's document with moments counted from `zero_s`, moments and durations rounded."""
    moments = {"start_s", "end_s", "ready_s", "launched_s", "started_s", "wire_s", "finished_s", "written_s"}

    def value(key: str, entry: Any) -> Any:
        if key == "buckets":
            return [_round_to_microseconds(bucket, zero_s) for bucket in entry]
        if entry is None or not key.endswith("_s"):
            return list(entry) if isinstance(entry, tuple) else entry
        return round(entry - zero_s if key in moments else entry, 6)

    return {key: value(key, entry) for key, entry in document.items()}
