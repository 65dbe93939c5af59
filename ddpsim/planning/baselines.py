"""Trivial predictors of a step, what a simulator must beat: a line each, without launches, hooks or copies.

Whose times they are fed with is the caller's to say: `ddpsim.planning.validate` gives a prediction's own, a campaign
gives measured ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Baselines:
    """What trivial predictors say of the mean iteration, in seconds.

    Attributes:
        one_process_s: communication costs nothing.
        sum_s: nothing of it hides.
        max_s: all of it hides, as far as there is something to hide under.
        in_order_pipeline_s: a bucket starts at the later of its last gradient and the end of the bucket before it.
    """

    one_process_s: float
    sum_s: float
    max_s: float
    in_order_pipeline_s: float


def baselines(
    buckets: Iterable[tuple[float, float]],
    *,
    local_s: float,
    optimizer_s: float,
    under_s: float,
    communication_s: float,
    sync_every: int = 1,
) -> Baselines:
    """Return what the trivial predictors say.

    Args:
        buckets: in launch order: when its last gradient is ready, from the start of forward, and its allreduce's time.
        local_s: one process's iteration.
        optimizer_s: the part of it after backward; its share where only one iteration in `sync_every` has one.
        under_s: the part of it that communication may hide under: backward, or all of it.
        communication_s: time on the wire of all buckets; less than their sum where they overlap one another.
        sync_every: all but every so many iterations are one process's.
    """
    end_s = 0.0
    for ready_s, time_s in buckets:
        end_s = max(end_s, ready_s) + time_s

    def mean(synced_s: float) -> float:
        return local_s + (synced_s - local_s) / sync_every

    return Baselines(
        one_process_s=local_s,
        sum_s=mean(local_s + communication_s),
        max_s=mean(local_s - under_s + max(under_s, communication_s)),
        in_order_pipeline_s=mean(max(local_s, end_s + optimizer_s)),
    )
