"""A scheme and a predictor as a user writes them, by the pages that say how."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ddpsim.common.operation import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import PointKind, points
from ddpsim.schedules.schedule import Schedule
from ddpsim.schedules.setup import SchemeInputs


def lazy(setup: SchemeInputs) -> Schedule:
    """Return DDP's buckets, for which the next forward waits in place of the end of backward."""
    messages = [
        Message(
            id=f"bucket {place}",
            op=Operation.ALLREDUCE,
            size_bytes=setup.size_bytes(bucket),
            parameters=bucket,
            after=points(PointKind.GRADIENT, bucket),
            blocks=points(PointKind.OPTIMIZER, bucket),
            every=setup.every,
        )
        for place, bucket in enumerate(setup.buckets)
    ]
    return Schedule(scheme="lazy", messages=tuple(messages), update="before_use")


class MedianReady:
    """Expects of each gradient the median of its times."""

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def observe(self, ready: Sequence[float]) -> None:
        """Take the times of one backward."""
        self.seen.append(list(ready))

    def predict(self) -> Sequence[float]:
        """Return the times of the next."""
        return [statistics.median(times) for times in zip(*self.seen, strict=True)]
