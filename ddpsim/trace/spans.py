"""Spans drawn from iteration records, so that simulated and measured runs look alike in a viewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddpsim.trace.records import (
    BACKWARD,
    BUCKETS,
    COLLECTIVES,
    COMPUTE,
    COPY_OUT,
    FORWARD,
    HOST,
    INPUT,
    OPTIMIZER,
    WAIT,
    Iteration,
    Span,
    communication_stream,
)


def spans_of(iterations: Sequence[Iteration], backend: str) -> list[Span]:
    """Return the spans of `iterations`: phases and waits, buckets, and collectives on as many streams as overlap.

    Collectives carry `args.backend`, `args.bucket`, `args.size_bytes` and the times of their bucket.
    """
    spans: list[Span] = []
    for iteration in iterations:
        spans += _phases(iteration)
        spans += _collectives(iteration, backend)
    return spans


def _phases(it: Iteration) -> Iterator[Span]:
    forward = it.start_s + (it.input_s or 0.0) + it.buffer_broadcast_s
    backward_end = max((g.ready_s for g in it.gradients), default=forward + it.forward_s + it.backward_compute_s)
    forward_end = forward + it.forward_s + it.held_up_s
    if it.input_s is not None:
        yield _span(it, HOST, INPUT, it.start_s, it.start_s + it.input_s, kernel=False)
    yield _span(it, COMPUTE, FORWARD, forward, forward_end)
    yield _span(it, COMPUTE, BACKWARD, forward_end, backward_end)
    yield _span(it, COMPUTE, OPTIMIZER, max(backward_end, it.end_s - it.optimizer_s), it.end_s)
    if it.exposed_comm_s > 0:
        yield _span(it, HOST, WAIT, backward_end, backward_end + it.exposed_comm_s, kernel=False)


def _collectives(it: Iteration, backend: str) -> Iterator[Span]:
    free: list[float] = []
    for bucket in it.buckets:
        args: dict[str, object] = {
            "bucket": bucket.index,
            "size_bytes": bucket.size_bytes,
            "ready_s": bucket.ready_s,
            "launched_s": bucket.launched_s,
            "wire_s": bucket.wire_s,
        }
        life = _span(it, BUCKETS, f"bucket {bucket.index}", bucket.ready_s, bucket.written_s, kernel=False)
        yield life
        stream = next((i for i, end in enumerate(free) if end <= bucket.started_s), len(free))
        free[stream : stream + 1] = [bucket.finished_s]
        yield Span(
            rank=it.rank,
            stream=communication_stream(stream),
            name=COLLECTIVES[bucket.operation],
            start_s=bucket.started_s,
            duration_s=bucket.finished_s - bucket.started_s,
            kernel=True,
            args={"backend": backend, "iteration": it.index, **args},
        )
        if bucket.written_s > bucket.finished_s:
            yield _span(it, COMPUTE, COPY_OUT, bucket.finished_s, bucket.written_s, kernel=False)


def _span(it: Iteration, stream: str, name: str, start_s: float, end_s: float, *, kernel: bool = True) -> Span:
    return Span(
        rank=it.rank,
        stream=stream,
        name=name,
        start_s=start_s,
        duration_s=max(0.0, end_s - start_s),
        kernel=kernel,
        args={"iteration": it.index},
    )
