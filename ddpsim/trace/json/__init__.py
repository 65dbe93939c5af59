"""Traces as files: one Chrome/Kineto JSON a rank that Perfetto and HolisticTraceAnalysis open, and a `run.json`.

`rank{N}.json.gz` holds the spans as events and each `Iteration` record whole in the args of its `iteration N` event, so
that reading gives the records back bit for bit; spans come back to the nanosecond. A kernel is an event of category
`kernel` with its stream and correlation and a launch event on the host thread. A collective has, as in Kineto, an
annotation with its own name (`nccl:all_reduce`) around a kernel whose name starts with `ncclDevKernel_`: that prefix is
what HolisticTraceAnalysis counts as communication. A simulated step's longest path has threads of its own in the file
of the lowest rank: slices, and flow arrows from each to the next.
"""

from ddpsim.trace.json.beside import write_beside
from ddpsim.trace.json.models import iteration_from
from ddpsim.trace.json.reading import rank_files, read_trace
from ddpsim.trace.json.schema import RUN_SCHEMA, SCHEMA
from ddpsim.trace.json.writing import discard_trace, iteration_document, write_rank, write_run, write_trace

__all__ = [
    "RUN_SCHEMA",
    "SCHEMA",
    "discard_trace",
    "iteration_document",
    "iteration_from",
    "rank_files",
    "read_trace",
    "write_beside",
    "write_rank",
    "write_run",
    "write_trace",
]
