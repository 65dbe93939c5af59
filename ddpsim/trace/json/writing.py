"""A `Trace` to files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ddpsim.common.documents.fields import keys_of
from ddpsim.common.files import compress, json_text, remove, write_whole
from ddpsim.trace.json.models import LayerRecord
from ddpsim.trace.json.reading import files_by_rank
from ddpsim.trace.json.schema import COLLECTIVE, KERNEL, PATH, RECORD, RUN_SCHEMA, SCHEMA
from ddpsim.trace.records import (
    BUCKET,
    BUCKETS,
    COMPUTE,
    HOST,
    ITERATION,
    Iteration,
    PartTimes,
    PathSpan,
    Span,
    Trace,
)

_TIDS = {HOST: 0, COMPUTE: 7, BUCKETS: 1000}
_FIRST_COMMUNICATION_TID = 20
"""The first stream of collectives: as on a GPU, where torch computes on 7 and NCCL has a later one."""
_FIRST_PATH_TID = 2000
"""The first stream of the longest path, below all others."""

_ITERATION = [name for name in keys_of(Iteration) if name != "parts"]
_LAYER, _PART = keys_of(LayerRecord), keys_of(PartTimes)

Event = dict[str, object]


def write_trace(trace: Trace, directory: str | Path) -> None:
    """Write every recorded rank and `run.json` under `directory`; files of other ranks, an earlier trace's, go."""
    ranks = {*trace.ranks, *(span.rank for span in trace.spans)}
    for rank in sorted(ranks):
        write_rank(trace, rank, directory)
    write_run(trace, directory)
    for rank, file in files_by_rank(Path(directory)).items():
        if rank not in ranks:
            remove(file)


def discard_trace(directory: str | Path, rank: int, world_size: int) -> None:
    """Remove an earlier trace under `directory`, as every rank of a new run does before it writes.

    Each removes its own file, so that none waits for another; rank 0 also `run.json` and files of ranks beyond the new.

    Raises:
        InputError: where a file cannot be removed.
    """
    folder = Path(directory)
    remove(folder / f"rank{rank}.json.gz")
    if rank == 0:
        remove(folder / "run.json")
        for other, file in files_by_rank(folder).items():
            if other >= world_size:
                remove(file)


def write_rank(trace: Trace, rank: int, directory: str | Path) -> None:
    """Write what `trace` knows of `rank` as `rank{N}.json.gz`: same trace, same bytes."""
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "backend": trace.backend, "world_size": trace.world_size},
        "ddpsim": {"schema": SCHEMA},
        "displayTimeUnit": "ms",
        "traceEvents": list(_events(trace, rank)),
    }
    write_whole(Path(directory) / f"rank{rank}.json.gz", compress(json.dumps(document, allow_nan=False)))


def write_run(trace: Trace, directory: str | Path) -> None:
    """Write `run.json`: world size, backend, recorded ranks and provenance."""
    document = {
        "schema": RUN_SCHEMA,
        "world_size": trace.world_size,
        "backend": trace.backend,
        "ranks": trace.ranks,
        "provenance": dict(trace.provenance),
    }
    write_whole(Path(directory) / "run.json", json_text(document))


def _events(trace: Trace, rank: int) -> Iterator[Event]:
    iterations = trace.of_rank(rank)
    spans = sorted((span for span in trace.spans if span.rank == rank), key=lambda span: span.start_s)
    tids = stream_numbers(spans)
    yield from stream_names(rank, tids, f"rank {rank}")
    for it in iterations:
        args = {RECORD: iteration_document(it)}
        yield _complete((rank, tids[HOST]), f"{ITERATION} {it.index}", "user_annotation", it.start_s, it.end_s, args)
    for correlation, span in enumerate(spans, start=1):
        yield from span_events(span, tids[span.stream], correlation, tids[HOST], trace.backend)
    if iterations and rank == trace.ranks[0]:
        yield from path_events(trace.path, rank)


def path_events(path: Sequence[PathSpan], process: int) -> Iterator[Event]:
    """Yield slices of the longest path, a thread for each stream it passes, and flow arrows from each to the next.

    An arrow begins within the slice that ends, and ends at the beginning of the next one.
    """
    tids = {stream: _FIRST_PATH_TID + n for n, stream in enumerate(dict.fromkeys(span.stream for span in path))}
    for stream, tid in tids.items():
        named: Event = {"ph": "M", "ts": 0, "pid": process, "tid": tid}
        yield {**named, "name": "thread_name", "args": {"name": f"critical path: {stream}"}}
        yield {**named, "name": "thread_sort_index", "args": {"sort_index": tid}}
    for span in path:
        yield _complete((process, tids[span.stream]), span.cause, PATH, span.start_s, span.end_s, {})
    for number, (span, after) in enumerate(pairwise(path), start=1):
        arrow: Event = {"cat": PATH, "name": "waits for", "id": number, "pid": process}
        within_us = max(_us(span.start_s), round(_us(span.end_s) - _LAST_US, 3))
        yield {**arrow, "ph": "s", "tid": tids[span.stream], "ts": within_us}
        yield {**arrow, "ph": "f", "bp": "e", "tid": tids[after.stream], "ts": _us(after.start_s)}


_LAST_US = 0.001
"""The last moment of a slice that is within it."""


def stream_numbers(spans: Iterable[Span]) -> dict[str, int]:
    """Return the thread of each stream in a file."""
    tids = dict(_TIDS)
    for stream in sorted({span.stream for span in spans} - tids.keys(), key=lambda name: (len(name), name)):
        tids[stream] = _FIRST_COMMUNICATION_TID + len(tids) - len(_TIDS)
    return tids


def stream_names(process: int, tids: Mapping[str, int], name: str) -> Iterator[Event]:
    """Yield the events that name a process and its streams; processes are shown by their number."""
    base: Event = {"ph": "M", "ts": 0, "pid": process}
    yield {**base, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {**base, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}
    for stream, tid in tids.items():
        yield {**base, "tid": tid, "name": "thread_name", "args": {"name": stream}}
        yield {**base, "tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def span_events(span: Span, tid: int, number: int, host_tid: int, backend: str) -> Iterator[Event]:
    """Yield the events of one span: where it is a kernel, its launch too; `number` ties them."""
    where = (span.rank, tid)
    args = dict(span.args)
    if span.stream == BUCKETS:
        begin = {"ph": "b", "cat": "bucket", "id": number, "name": span.name, "pid": span.rank, "tid": tid}
        yield {**begin, "ts": _us(span.start_s), "args": {**args, "duration_s": span.duration_s}}
        yield {**begin, "ph": "e", "ts": _us(span.end_s)}
        return
    collective = span.name.startswith(COLLECTIVE)
    args |= {"backend": backend} if collective else {}
    if not span.kernel:
        yield _complete(where, span.name, "user_annotation", span.start_s, span.end_s, args)
        return
    launched = span.args.get("launched_s")
    launch_s = min(launched, span.start_s) if isinstance(launched, float) else span.start_s
    launch = {"correlation": number}
    yield _complete((span.rank, host_tid), "cudaLaunchKernel", "cuda_runtime", launch_s, launch_s, launch)
    if collective:
        yield _complete(where, span.name, "gpu_user_annotation", span.start_s, span.end_s, args)
        kernel: dict[str, object] = {"backend": backend, "Collective name": span.name.removeprefix(COLLECTIVE)}
        name = KERNEL + "".join(word.title() for word in span.name.removeprefix(COLLECTIVE).split("_"))
    else:
        kernel, name = args, span.name
    kernel = {**kernel, "device": 0, "stream": tid, "correlation": number}
    yield _complete(where, name, "kernel", span.start_s, span.end_s, kernel)


def _complete(
    where: tuple[int, int], name: str, category: str, start_s: float, end_s: float, args: Mapping[str, object]
) -> Event:
    """Return the event of what took time in a (process, thread)."""
    (pid, tid), start = where, _us(start_s)
    event: Event = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start}
    return {**event, "dur": round(max(_us(end_s) - start, 0.0), 3), "args": dict(args)}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def iteration_document(it: Iteration) -> dict[str, object]:
    """Return `it` as JSON values; without parts that it has not: loading data, messages of layers, devices."""
    # Not by `document_of`, which asks each value's type: a trace is written while its training waits.
    record: dict[str, object] = {name: getattr(it, name) for name in _ITERATION}
    of_bucket = BUCKET if it.parts else [name for name in BUCKET if name != "device"]
    record["buckets"] = [{name: getattr(bucket, name) for name in of_bucket} for bucket in it.buckets]
    record["gradients"] = [[g.parameter, g.hook_s, g.ready_s] for g in it.gradients]
    if it.input_s is None:
        del record["input_s"]
    if it.layer_comm_s is None:
        del record["layer_comm_s"]
    else:
        record["layers"] = [{name: getattr(each, name) for name in _LAYER} for each in it.others]
    if it.parts:
        record["parts"] = [{name: getattr(each, name) for name in _PART} for each in it.parts]
    return record
