"""A predicted and a measured step in one file, which Perfetto shows side by side.

One step of each, of every rank that both have: that of the lowest rank whose period is nearest the median. Both begin
at 0, so that what lies below one another happened at the same time after the start of forward.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import fmean, median

from ddpsim.common.errors import TraceError
from ddpsim.common.files import compress, write_whole
from ddpsim.trace.cycles import cycles
from ddpsim.trace.json.writing import Event, path_events, span_events, stream_names, stream_numbers
from ddpsim.trace.records import HOST, ITERATION, Span, Trace

SIDES = ("measured", "predicted")


def write_beside(measured: Trace, predicted: Trace, path: str | Path) -> None:
    """Write a step of each to `path`, gzip's JSON of Chrome's events; a rank has a process for each side.

    Raises:
        TraceError: a trace without iterations, or two of different world sizes.
        InputError: the file cannot be written.
    """
    if measured.world_size != predicted.world_size:
        what = f"the run has {measured.world_size} ranks, the prediction {predicted.world_size}"
        raise TraceError(what, remedy="predict with the run's `nodes` and `gpus_per_node`")
    numbers, traces = count(1), zip(SIDES, (measured, predicted), strict=True)
    events = [event for side, trace in traces for event in _events(trace, side, numbers)]
    document = {"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": events}
    write_whole(path, compress(json.dumps(document, allow_nan=False)))


def _events(trace: Trace, side: str, numbers: Iterator[int]) -> Iterator[Event]:
    first, last = _step(trace)
    for rank in trace.ranks:
        mine = [it for it in trace.of_rank(rank) if first <= it.index <= last]
        if not mine:
            continue
        begin, end = mine[0].start_s, mine[-1].end_s
        spans = [span for span in trace.spans if span.rank == rank and begin <= span.start_s < end]
        for it in mine:
            named = f"{ITERATION} {it.index}"
            spans.append(Span(rank=rank, stream=HOST, name=named, start_s=it.start_s, duration_s=it.iteration_s))
        process = 2 * rank + SIDES.index(side)
        shifted = sorted((_shift_span(span, begin, process) for span in spans), key=lambda span: span.start_s)
        tids = stream_numbers(shifted)
        yield from stream_names(process, tids, f"rank {rank} {side}")
        for span in shifted:
            yield from span_events(span, tids[span.stream], next(numbers), tids[HOST], trace.backend)
        if rank == trace.ranks[0]:
            on_path = ((span, it.start_s - begin) for it in mine for span in trace.path_of(it))
            moved = [replace(span, start_s=span.start_s + by_s, end_s=span.end_s + by_s) for span, by_s in on_path]
            yield from path_events(moved, process)


def _step(trace: Trace) -> tuple[int, int]:
    """Return the first and the last iteration of the step to show."""
    if not trace.iterations:
        raise TraceError("the trace holds no iteration", remedy="run at least one iteration after the warm-up")
    step_cycles = cycles(trace.of_rank(trace.ranks[0]))
    periods = [fmean(it.iteration_s for it in cycle) for cycle in step_cycles]
    middle = median(periods)
    chosen = step_cycles[min(range(len(step_cycles)), key=lambda place: abs(periods[place] - middle))]
    return chosen[0].index, chosen[-1].index


def _shift_span(span: Span, begin_s: float, process: int) -> Span:
    """Return `span`, and the times in its args, from `begin_s` on, as of a process."""
    args: dict[str, object] = {
        name: value - begin_s if name.endswith("_s") and isinstance(value, int | float) else value
        for name, value in span.args.items()
    }
    return replace(span, rank=process, start_s=span.start_s - begin_s, args=args)
