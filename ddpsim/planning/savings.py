"""Why other buckets take less: the step that a plan saves, taken apart by where it was lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.execute import make_transport
from ddpsim.prediction.prediction import Prediction

WHERE: Mapping[str, str] = MappingProxyType(
    {
        "last_bucket": "bytes left to send after the last gradient",
        "latency": "latency of collectives after the last gradient",
        "launches": "hooks, launches and copies of DDP",
        "contention": "slowdown of computation that overlaps collectives",
        "elsewhere": "other waits",
    }
)
"""Where a step is lost that buckets decide on, in words."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A part of what a plan saves of a step; negative where the plan loses there.

    Attributes:
        where: a key of `WHERE`.
        seconds: all of a plan's savings sum to what it saves.
    """

    where: str
    seconds: float

    def document(self) -> dict[str, object]:
        """Return the saving as JSON values."""
        return {"where": self.where, "what": WHERE[self.where], "seconds": self.seconds}


def savings(default: Prediction, best: Prediction, calibration: Calibration | None = None) -> tuple[Saving, ...]:
    """Return what `best` saves over `default`, the largest part first.

    After the last gradient a step waits for its last bucket, and for those before it that are still to be sent: for
    their bytes and for their latencies. What it waits for beyond these is `elsewhere`.
    """
    before, after = _split_losses(default, calibration), _split_losses(best, calibration)
    parts = [Saving(where, before[where] - after[where]) for where in WHERE]
    return tuple(sorted(parts, key=lambda saving: -abs(saving.seconds)))


def _split_losses(prediction: Prediction, calibration: Calibration | None) -> dict[str, float]:
    """Return the seconds of a step by where they go; together they are the step, but for what no bucket changes.

    What is exposed is shared out among the buckets still to be sent after the last gradient, each by its time from then
    on. Collectives overlap one another on some streams, so that those times may sum to more than is exposed: all are
    scaled down alike.
    """
    s = prediction.summary
    lost = dict.fromkeys(WHERE, 0.0)
    lost["launches"] = s.ddp_overhead_s
    lost["contention"] = s.forward_s + s.backward_compute_s + s.optimizer_s
    waits_s = s.exposed_comm_s + s.buffer_broadcast_s
    if s.buckets and s.exposed_comm_s > 0:
        since_s = s.buckets[-1].ready_s
        left = [(b.size_bytes, max(b.finished_s - max(b.started_s, since_s), 0.0)) for b in s.buckets]
        whole_s = sum(seconds for _, seconds in left)
        scale = min(s.exposed_comm_s / whole_s, 1.0) if whole_s > 0 else 0.0
        for size_bytes, seconds in left:
            share = _latency_share(prediction, size_bytes, calibration) if seconds else 0.0
            lost["latency"] += seconds * share * scale
            lost["last_bucket"] += seconds * (1 - share) * scale
    lost["elsewhere"] = waits_s - lost["latency"] - lost["last_bucket"]
    return lost


def _latency_share(prediction: Prediction, size_bytes: int, calibration: Calibration | None) -> float:
    options = prediction.options
    backend = options.backend_for(prediction.workload)
    transport = make_transport(prediction.placement, backend, calibration, options.collective)
    demand, whole_s = transport.allreduce(size_bytes), transport.allreduce_s(size_bytes)
    return min((demand.latency_s + demand.stall_s) / whole_s, 1.0) if whole_s > 0 else 1.0
