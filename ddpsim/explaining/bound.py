"""What a step is bound by: the host that launches, the device that works, or communication that nothing hides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

from ddpsim.explaining.seen import PARTS, PHASES, SeenRank

Bound = Literal["host", "device", "communication"]


@dataclass(frozen=True, slots=True)
class StepShares:
    """What a usual step of one rank is made of, seconds: they sum to it.

    Attributes:
        device_s: the device works; on a CPU forward, backward and optimizer.
        communication_s: it waits for collectives, other ranks or buffers.
        host_s: it has neither: launches, hooks, loading.
    """

    device_s: float
    communication_s: float
    host_s: float

    @property
    def bound(self) -> Bound:
        """The largest share."""
        shares: Mapping[Bound, float] = {
            "device": self.device_s,
            "communication": self.communication_s,
            "host": self.host_s,
        }
        return max(shares, key=lambda name: shares[name])


def shares_of(rank: SeenRank) -> StepShares:
    """Return what the usual step of `rank` is made of."""
    steps = [step for step in rank.steps if step.counts] or list(rank.steps)
    step_s = median(step.step_s for step in steps)
    on_device = any(step.device_s for step in steps)
    # The host copies buffers itself; on a GPU their broadcast is mostly its launches, which the device idles under.
    waits = ("exposed_comm_s",) if on_device else ("exposed_comm_s", "buffer_broadcast_s")
    others = sorted({part for step in steps for part in step.parts} - {*PARTS})
    communication = median(sum(step.parts.get(part, 0.0) for part in (*waits, *others)) for step in steps)
    if on_device:
        device = median(sum(step.device_s.values()) for step in steps)
    else:
        device = median(sum(step.host_s.get(p, 0.0) for p in PHASES if p not in ("input", "hooks")) for step in steps)
    device = min(device, max(0.0, step_s - communication))
    return StepShares(device, communication, max(0.0, step_s - communication - device))
