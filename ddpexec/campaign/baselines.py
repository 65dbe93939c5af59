"""Trivial predictors of a step, fed with measured times: what a simulator must beat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ddpsim.metrics import BucketSummary

Table = Sequence[tuple[int, float]]
"""Measured allreduces: size in bytes, seconds; sizes ascending."""


def interpolated(table: Table, size_bytes: int) -> float:
    """Return the time of an allreduce of `size_bytes`: log-log between rows, the last row's bandwidth beyond them.

    Below the first row its time holds.
    """
    if size_bytes <= table[0][0]:
        return table[0][1]
    for (small, fast), (large, slow) in pairwise(table):
        if size_bytes <= large:
            share = math.log(size_bytes / small) / math.log(large / small)
            return fast * math.exp(share * math.log(slow / fast))
    return table[-1][1] * size_bytes / table[-1][0]


def baselines(
    table: Table, buckets: Sequence[BucketSummary], local_s: float, optimizer_s: float, no_sync_every: int = 1
) -> Mapping[str, float]:
    """Return what each trivial predictor says of the mean iteration.

    Args:
        table: allreduces measured on this network apart from the run.
        buckets: of the run; their measured `ready_s`, from the start of forward, feeds the pipeline.
        local_s: one process's iteration.
        optimizer_s: the part of it after backward.
        no_sync_every: all but every so many iterations are one process's.
    """
    times = [interpolated(table, bucket.size_bytes) for bucket in buckets]
    wire_s, end_s = sum(times), 0.0
    for bucket, time_s in zip(buckets, times, strict=True):
        end_s = max(end_s, bucket.ready_s) + time_s
    synced = {
        "one_process": local_s,
        "max_of_compute_and_wire": max(local_s, wire_s),
        "sum_of_compute_and_wire": local_s + wire_s,
        "in_order_pipeline": max(local_s, end_s + optimizer_s),
    }
    return {name: local_s + (seconds - local_s) / no_sync_every for name, seconds in synced.items()}
