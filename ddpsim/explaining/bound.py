"""What a step is bound by: the host that launches, the device, exposed communication, input, or a late rank.

`shares_of` splits a usual step of one rank into seconds that sum to it; the largest binds, and a second one that is
near to it binds as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Literal

from ddpsim.explaining.late import LateRank
from ddpsim.explaining.ranks import TracedRank, common_iterations
from ddpsim.trace.metrics import seconds_by_part
from ddpsim.trace.records import PHASES

Bound = Literal["host", "device", "communication", "input", "rank"]

NEAR = 2 / 3
"""Second largest over largest share from which on both bind."""

_MOSTLY = 0.5
"""Share of the waiting from which on one rank is named as the one that is waited for."""


@dataclass(frozen=True, slots=True)
class StepShares:
    """What a usual step of one rank is made of, seconds: the first three sum to it."""

    device_s: float
    """The device works; on a CPU forward, backward and optimizer."""
    communication_s: float
    """The device waits for collectives, other ranks or buffers."""
    host_s: float
    """The rest: launches, hooks, loading."""
    input_s: float = 0.0
    """Of `host_s`, between the optimizer and the next forward."""
    waiting_s: float = 0.0
    """Of `communication_s`, until the last rank has come."""
    broadcast_wait_s: float = 0.0
    """Of `waiting_s`, in the broadcast of buffers; the rest is in exposed communication."""
    waits_for: int | None = None
    """The rank that causes most of `waiting_s`; None where ranks take turns, or one alone is traced."""
    own_excess_s: float = 0.0
    """What the rank takes beyond the others, where it is the late one itself."""
    excess_of: Bound = "device"
    """The share that `own_excess_s` is a part of."""

    @property
    def bounds(self) -> list[Bound]:
        """The largest share, and the second where it is near."""
        shares: dict[Bound, float] = {
            "device": self.device_s,
            "communication": self.communication_s - self.waiting_s,
            "host": self.host_s - self.input_s,
            "input": self.input_s,
            "rank": self.waiting_s + self.own_excess_s,
        }
        shares[self.excess_of] -= min(self.own_excess_s, shares[self.excess_of])
        first, second = sorted(shares, key=lambda name: -shares[name])[:2]
        return [first, second] if shares[second] >= NEAR * shares[first] else [first]


def describe_binding(bounds: Sequence[Bound], waits_for: int | None) -> str:
    """Return what binds in words."""
    names = {"rank": "waiting for ranks" if waits_for is None else f"waiting for rank {waits_for}"}
    return " and ".join(names.get(each, each) for each in bounds)


def shares_of(rank: TracedRank, ranks: Sequence[TracedRank] = (), late: LateRank | None = None) -> StepShares:
    """Return what the usual step of `rank` is made of, by medians over its steps.

    Args:
        ranks: all that were traced, on one clock; of one alone the waiting for the last is unknown.
        late: the rank that is late.
    """
    steps = rank.counted
    step_s = median(step.iteration_s for step in steps)
    device_timed = any(step.device_s for step in steps)
    # The host copies buffers itself; on a GPU their broadcast is mostly its launches, which the device idles under.
    waits = ("exposed_comm_s",) if device_timed else ("exposed_comm_s", "buffer_broadcast_s")
    others = sorted({part for step in steps for part in step.waits_s})
    parts_of_steps = [seconds_by_part(step) for step in steps]
    communication = median(sum(parts.get(part, 0.0) for part in (*waits, *others)) for parts in parts_of_steps)
    if device_timed:
        device = median(sum(step.device_s.values()) for step in steps)
    else:
        device = median(sum(step.host_s.get(p, 0.0) for p in PHASES if p not in ("input", "hooks")) for step in steps)
    # Medians of parts need not add up to the median step: the device's share is cut, the host's is the remainder.
    device = min(device, max(0.0, step_s - communication))
    host = max(0.0, step_s - communication - device)
    input_time = min(host, median(step.input_s or 0.0 for step in steps))
    waiting, last = _find_waiting(ranks)
    # The late rank itself hardly waits: its excess counts as waiting, or a step would be bound by something else on it
    # than on all others.
    if late is not None and late.rank == rank.rank:
        of: Bound = "input" if late.cause == "input" else "host" if late.cause == "host" else "device"
        return StepShares(device, communication, host, input_time, waiting, 0.0, last, late.behind_s, of)
    if late is None:
        return StepShares(device, communication, host, input_time, waiting, 0.0, last)
    # Traces hold no arrival of ranks at broadcasts of buffers. They begin the step, before the late rank is there: what
    # of its delay no other collective shows was spent in them.
    broadcast = 0.0 if device_timed else median(step.buffer_broadcast_s for step in steps)
    in_broadcast = min(broadcast, max(0.0, late.behind_s - waiting))
    return StepShares(device, communication, host, input_time, waiting + in_broadcast, in_broadcast, late.rank)


def _find_waiting(ranks: Sequence[TracedRank]) -> tuple[float, int | None]:
    """Return how long the first rank waits in a usual step, doing nothing else, and for whom most of the time.

    A wait for the last rank counts from where nothing hides it: while backward still computes it costs nothing.
    """
    waited: list[float] = []
    by_last: dict[int, float] = {}
    for row in common_iterations(ranks, attrgetter("whole")) if len(ranks) > 1 else ():
        sent = {rank: it.collectives for rank, it in row.items()}
        if len({len(each) for each in sent.values()}) > 1:
            continue
        first = row[min(row)]
        # DDP's exposed communication is the end of the reduction, before the optimizer: waits earlier were hidden.
        since_s = max((each.finished_s for each in sent[first.rank]), default=0.0) - first.exposed_comm_s
        if ranks[0].scheme != "ddp":
            since_s = first.start_s
        in_step_s = 0.0
        for number, mine in enumerate(sent[first.rank]):
            last = max(sent, key=lambda rank: sent[rank][number].started_s)
            last_started_s = min(sent[last][number].started_s, mine.finished_s)
            begun_s = max(mine.started_s, since_s)
            wait_s = max(0.0, last_started_s - begun_s) if mine.is_of_all(ranks[0].world_size) else 0.0
            by_last[last] = by_last.get(last, 0.0) + wait_s
            in_step_s += wait_s
        waited.append(min(in_step_s, first.exposed_comm_s))
    most = max(by_last, key=lambda rank: by_last[rank], default=None)
    known = most is not None and by_last[most] > _MOSTLY * sum(by_last.values())
    return median(waited) if waited else 0.0, most if known else None
