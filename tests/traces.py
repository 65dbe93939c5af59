"""Traces for tests: one consistent example, and random ones."""

from __future__ import annotations

from hypothesis import strategies as st

from ddpsim.trace.records import (
    ALLREDUCE,
    BACKWARD,
    BUCKETS,
    COMPUTE,
    FORWARD,
    HOST,
    OPTIMIZER,
    BucketTimes,
    Gradient,
    Iteration,
    Span,
    Trace,
    communication_stream,
)  # fmt: skip


def example_trace(world_size: int = 2, iterations: int = 3, backend: str = "nccl", skew_s: float = 0.001) -> Trace:
    """Forward 10 ms, backward 20 ms, two buckets of 8 ms on the wire ready at 20 and 30 ms, optimizer 2 ms.

    Rank r reaches bucket 0 `r * skew_s` late and all wait for the last; that collective is hidden up to 30 ms, the
    second (30 to 38 ms) not at all.
    """
    records: list[Iteration] = []
    spans: list[Span] = []
    period, last = 0.040, (world_size - 1) * skew_s
    for rank in range(world_size):
        for index in range(iterations):
            start = index * period
            begin = start + 0.020 + rank * skew_s
            first = _bucket(0, 4096, (2, 3), begin, start + 0.020 + last, start + 0.028 + last)
            second = _bucket(1, 8192, (0, 1), start + 0.030, start + 0.030, start + 0.038)
            gradients = tuple(Gradient(parameter=p, hook_s=start + t, ready_s=start + t) for p, t in
                              ((3, 0.015), (2, 0.020), (1, 0.025), (0, 0.030)))  # fmt: skip
            records.append(
                Iteration(
                    rank=rank, index=index, start_s=start, end_s=start + period, forward_s=0.010,
                    backward_compute_s=0.020, exposed_comm_s=0.008, buffer_broadcast_s=0.0, optimizer_s=0.002,
                    buckets=(first, second), gradients=gradients,
                )
            )  # fmt: skip
            spans += [
                Span(rank=rank, stream=COMPUTE, name=FORWARD, start_s=start, duration_s=0.010, kernel=True),
                Span(rank=rank, stream=COMPUTE, name=BACKWARD, start_s=start + 0.010, duration_s=0.020, kernel=True),
                Span(rank=rank, stream=COMPUTE, name=OPTIMIZER, start_s=start + 0.038, duration_s=0.002, kernel=True),
                Span(
                    rank=rank,
                    stream=HOST,
                    name="gradient",
                    start_s=start + 0.015,
                    duration_s=0.0,
                    args={"parameter": 3},
                ),
            ]
            for bucket in (first, second):
                args: dict[str, object] = {"bucket": bucket.index, "iteration": index, "launched_s": bucket.launched_s}
                duration = bucket.finished_s - bucket.started_s
                spans.append(
                    Span(
                        rank=rank, stream=communication_stream(0), name=ALLREDUCE, start_s=bucket.started_s,
                        duration_s=duration, kernel=True, args=args,
                    )
                )  # fmt: skip
                life = bucket.written_s - bucket.ready_s
                spans.append(
                    Span(
                        rank=rank,
                        stream=BUCKETS,
                        name=f"bucket {bucket.index}",
                        start_s=bucket.ready_s,
                        duration_s=life,
                    )
                )
    return Trace(world_size, backend, records, spans, {"seed": 0, "versions": {"ddpsim": "0.1.0"}})


def _bucket(
    index: int, size_bytes: int, parameters: tuple[int, ...], started_s: float, wire_s: float, finished_s: float
) -> BucketTimes:
    return BucketTimes(
        index=index, size_bytes=size_bytes, parameters=parameters, ready_s=started_s - 2e-5,
        launched_s=started_s - 1e-5, started_s=started_s, wire_s=wire_s, finished_s=finished_s,
        written_s=finished_s + 1e-4,
    )  # fmt: skip


_seconds = st.floats(0, 1e6, allow_nan=False)
_buckets = st.builds(
    BucketTimes,
    index=st.integers(0, 9), size_bytes=st.integers(0, 1 << 40), parameters=st.lists(st.integers(0, 999)).map(tuple),
    ready_s=_seconds, launched_s=_seconds, started_s=_seconds, wire_s=st.none() | _seconds, finished_s=_seconds,
    written_s=_seconds,
)  # fmt: skip
_gradients = st.builds(Gradient, parameter=st.integers(0, 999), hook_s=_seconds, ready_s=_seconds)


@st.composite
def random_traces(draw: st.DrawFn) -> Trace:
    """Any trace of up to three ranks: numbers need not make sense, they must only survive."""
    world_size = draw(st.integers(1, 3))
    records = [
        draw(
            st.builds(
                Iteration, rank=st.just(rank), index=st.just(index), start_s=_seconds, end_s=_seconds,
                forward_s=_seconds, backward_compute_s=_seconds, exposed_comm_s=_seconds, buffer_broadcast_s=_seconds,
                optimizer_s=_seconds, synced=st.booleans(), buckets=st.lists(_buckets, max_size=2).map(tuple),
                gradients=st.lists(_gradients, max_size=3).map(tuple),
            )
        )
        for rank in range(world_size)
        for index in range(draw(st.integers(1, 2)))
    ]  # fmt: skip
    return Trace(world_size, draw(st.sampled_from(["nccl", "gloo"])), records, (), {"seed": draw(st.integers())})
