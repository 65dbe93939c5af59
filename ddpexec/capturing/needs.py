"""When forward first needs each parameter, from the calls of modules that were stamped in several iterations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddpexec.capturing.forward_calls import FirstUse
from ddpexec.capturing.stamps import NANOSECOND, Stamp
from ddpsim.workload.profile import ForwardUse, median_use


@dataclass(frozen=True, slots=True)
class StampedForward:
    """A forward holds when it began and ended, and when it needed each parameter, by registration index."""

    start: Stamp
    end: Stamp
    needs: Sequence[FirstUse[Stamp] | None]

    @property
    def host_s(self) -> float:
        """Seconds of the host."""
        return self.end.host_s - self.start.host_s

    @property
    def device_s(self) -> float:
        """Seconds of the device, idle ones among them."""
        return self.end.device_since(self.start)

    def use(self) -> ForwardUse:
        """Return the needs as seconds from the start."""
        moments = [None if need is None else need.moment for need in self.needs]
        host = [np.nan if moment is None else moment.host_s - self.start.host_s for moment in moments]
        device = [np.nan if moment is None else max(moment.device_since(self.start), 0.0) for moment in moments]
        return ForwardUse(np.array(host), np.array(device))

    def tells(self) -> bool:
        """Whether any call inside was seen, so that not all needs are but the start."""
        return any(need is not None and (need.moment is not self.start or not need.around) for need in self.needs)


def forward_use_of(forwards: Sequence[StampedForward], host_s: float, device_s: float) -> tuple[ForwardUse | None, str]:
    """Return when forward first needs each parameter, the median of `forwards`, and for people how that is known.

    Args:
        forwards: whose hooks make them a little longer than those that are recorded without.
        host_s, device_s: what forward takes on either clock in the recorded iterations.
    """
    if not any(forward.tells() for forward in forwards):
        return None, "not known: no call of a module that owns parameters was seen; all count as at the start"
    host, device = (
        whole / own if (own := float(np.median([getattr(forward, clock) for forward in forwards]))) > 0 else 1.0
        for clock, whole in (("host_s", host_s), ("device_s", device_s))
    )
    use = median_use([forward.use() for forward in forwards]).scale(host, device)
    rounded = ForwardUse(use.host_s.round(NANOSECOND), use.device_s.round(NANOSECOND))
    return rounded, "measured: pre-hooks of the modules that own parameters" + _make_around(forwards)


def _make_around(forwards: Sequence[StampedForward]) -> str:
    needs = zip(*(forward.needs for forward in forwards), strict=True)
    count = sum(any(need is not None and need.around for need in of_one) for of_one in needs)
    if not count:
        return ""
    whose = f"{count} of {len(forwards[0].needs)} parameters are of modules that are not called themselves"
    return f"; {whose}: the call of the next one around them is taken"
