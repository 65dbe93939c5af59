"""Traces of `ddpexec` and of the simulator as ranks seen: records say all but loading, which spans tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpsim.explaining.seen import SeenCollective, SeenRank, SeenStep
from ddpsim.trace.json.reading import read_rank
from ddpsim.trace.records import HOST, OPTIMIZER, BucketTimes, Iteration, Span, Trace


def read_recorded_rank(path: str | Path) -> SeenRank:
    """Return what a rank's file of `ddpexec` or `ddpsim` says.

    Raises:
        TraceError: truncated or malformed.
    """
    rank, trace = read_rank(path)
    return recorded_rank(trace, rank, str(path))


def recorded_rank(trace: Trace, rank: int, place: str) -> SeenRank:
    """Return what `trace` says of `rank`."""
    iterations = trace.of_rank(rank)
    updates = [span for span in trace.spans if span.rank == rank and span.stream == HOST and span.name == OPTIMIZER]
    updates.sort(key=lambda span: span.start_s)
    options = trace.provenance.get("options")
    return SeenRank(
        rank=rank,
        world_size=trace.world_size,
        backend=trace.backend,
        device="cpu" if trace.backend == "gloo" else "GPU",
        place=place,
        kind="ddpsim",
        scheme="ddp",
        steps=tuple(_step(iteration, updates) for iteration in iterations),
        clock="rank 0's",
        options=options if isinstance(options, Mapping) else {},
    )


def _step(it: Iteration, updates: Sequence[Span]) -> SeenStep:
    updated = [span.end_s for span in updates if it.start_s <= span.start_s < it.end_s]
    gap_s = max(0.0, it.end_s - max(updated)) if updated else 0.0
    input_s = min(gap_s, max(0.0, it.ddp_overhead_s))
    parts = {
        "forward_s": it.forward_s,
        "backward_compute_s": it.backward_compute_s,
        "exposed_comm_s": it.exposed_comm_s,
        "buffer_broadcast_s": it.buffer_broadcast_s,
        "ddp_overhead_s": it.ddp_overhead_s - input_s,
        "optimizer_s": it.optimizer_s,
        "input_s": input_s,
    }
    own = {
        "forward": it.forward_s,
        "backward": it.backward_compute_s,
        "optimizer": it.optimizer_s,
        "input": input_s,
    }
    return SeenStep(it.index, it.start_s, it.end_s, parts, own, {}, tuple(_collective(b) for b in it.buckets))


def _collective(bucket: BucketTimes) -> SeenCollective:
    return SeenCollective(
        index=bucket.index,
        operation=str(bucket.operation),
        size_bytes=bucket.size_bytes,
        parameters=len(bucket.parameters),
        arrived_s=min(max(bucket.ready_s, bucket.launched_s), bucket.finished_s),
        started_s=bucket.started_s,
        finished_s=bucket.finished_s,
    )
