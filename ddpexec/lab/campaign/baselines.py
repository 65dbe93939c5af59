"""Trivial predictors of a step, fed with measured times: what a simulator must beat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ddpsim.planning.baselines import baselines
from ddpsim.trace.metrics import BucketSummary

Table = Sequence[tuple[int, float]]
"""Measured allreduces: size in bytes, seconds; sizes ascending."""


def interpolate(table: Table, size_bytes: int) -> float:
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


def measure_baselines(
    table: Table, buckets: Sequence[BucketSummary], local_s: float, optimizer_s: float, sync_every: int = 1
) -> Mapping[str, float]:
    """Return what each trivial predictor says of the mean iteration.

    Args:
        table: allreduces measured on this network apart from the run.
        buckets: of the run; their measured `ready_s`, from the start of forward, feeds the pipeline.
        local_s, optimizer_s, sync_every: as `ddpsim.planning.baselines.baselines`.
    """
    times = [interpolate(table, bucket.size_bytes) for bucket in buckets]
    found = baselines(
        zip((bucket.ready_s for bucket in buckets), times, strict=True),
        local_s=local_s,
        optimizer_s=optimizer_s,
        under_s=local_s,
        communication_s=sum(times),
        sync_every=sync_every,
    )
    return {
        "one_process": found.one_process_s,
        "max_of_compute_and_wire": found.max_s,
        "sum_of_compute_and_wire": found.sum_s,
        "in_order_pipeline": found.in_order_pipeline_s,
    }
