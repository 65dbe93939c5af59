"""Each collective split into waiting for the last rank and time on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from ddpsim.collectives.calibration import CurvePoint
from ddpsim.explaining.ranks import TracedRank, common_iterations
from ddpsim.trace.metrics import bound_wires
from ddpsim.trace.records import CollectiveTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSummary(CollectiveTimes):
    """Medians over steps: its moments are those on the first rank, from the start of its step."""

    wait_s: float
    """How long ranks waited for the last one, their mean."""
    on_wire_s: float
    """From the last rank's start to the end."""
    waits_s: Mapping[int, float]
    """Wait by rank, of traced ranks."""
    last_rank: int | None
    """The rank that came last most often; None where one alone is known."""
    bound: bool
    """Whether the times are the first rank's alone, of a collective of some ranks or where one is traced: `on_wire_s`
    is then an upper and `wait_s` a lower bound (`bound_wires`), if at least one collective met no wait."""

    def document(self) -> dict[str, object]:
        """Return the split as JSON values."""
        return {
            "index": self.index,
            "operation": self.operation,
            "size_bytes": self.size_bytes,
            "parameters": len(self.parameters),
            "wait_s": self.wait_s,
            "wire_s": self.on_wire_s,
            "waits_s": {str(rank): seconds for rank, seconds in self.waits_s.items()},
            "last_rank": self.last_rank,
            "bound": self.bound,
            "ready_s": self.ready_s,
            "started_s": self.started_s,
            "finished_s": self.finished_s,
        }


def splits_of(ranks: Sequence[TracedRank]) -> tuple[CollectiveSummary, ...]:
    """Return the collectives of a usual step, in launch order.

    Args:
        ranks: on one clock; where some are not traced the last to come may be one of them, and waits are lower bounds.
    """
    first, *others = ranks
    counts = Counter(len(each) for rank in ranks for it in rank.iterations if (each := it.collectives))
    usual = counts.most_common(1)[0][0] if counts else 0
    of_one = [replace(first, iterations=tuple(bound_wires(first.iterations))), *others]
    rows = common_iterations(of_one, lambda it: len(it.collectives) == usual)
    stamped = [{rank: (it.start_s, it.collectives) for rank, it in row.items()} for row in rows] if usual else []
    by_index = [[{r: (at, each[n]) for r, (at, each) in row.items()} for row in stamped] for n in range(usual)]
    return tuple(_split(each, ranks) for each in by_index if each)


Stamps = Mapping[int, tuple[float, CollectiveTimes]]
"""A collective of one step by rank, with the step's start."""


def _split(steps: Sequence[Stamps], traced: Sequence[TracedRank]) -> CollectiveSummary:
    """Return the medians over steps of one collective.

    A rank waits from its own start to the last rank's; the wire is busy from there to the median end, for stamps of
    single ranks come late by scheduling.
    """
    lowest, several = min(steps[0]), len(traced) > 1
    if several and not all(c.is_of_all(traced[0].world_size) for stamps in steps for _, c in stamps.values()):
        # The n-th collective of a subgroup is another one on ranks of other groups: the first rank's stand alone.
        steps, several = [{lowest: stamps[lowest]} for stamps in steps], False
    ranks = sorted(steps[0])
    waits: dict[int, list[float]] = {rank: [] for rank in ranks}
    wires, last = [], Counter[int]()
    for stamps in steps:
        if several:
            begin = max(c.started_s for _, c in stamps.values())
            last[max(stamps, key=lambda rank: stamps[rank][1].arrived_s)] += 1
        else:
            begin = stamps[lowest][1].moving_s
        for rank, (_, c) in stamps.items():
            waits[rank].append(max(0.0, min(begin, c.finished_s) - c.started_s))
        wires.append(max(0.0, median(c.finished_s for _, c in stamps.values()) - begin))
    on_first = [stamps[lowest] for stamps in steps]
    _, first = on_first[0]
    ready_s = median(c.arrived_s - start_s for start_s, c in on_first)
    return CollectiveSummary(
        index=first.index,
        operation=first.operation,
        size_bytes=first.size_bytes,
        parameters=first.parameters,
        ready_s=ready_s,
        launched_s=ready_s,
        started_s=median(c.started_s - start_s for start_s, c in on_first),
        finished_s=median(c.finished_s - start_s for start_s, c in on_first),
        wait_s=median(fmean(waits[rank][n] for rank in ranks) for n in range(len(steps))),
        on_wire_s=median(wires),
        waits_s={rank: median(each) for rank, each in waits.items()},
        last_rank=last.most_common(1)[0][0] if several else None,
        bound=not several,
    )


def wire_times(splits: Sequence[CollectiveSummary]) -> list[CurvePoint]:
    """Return size and wire time of allreduces, ascending, one of each size."""
    wires: dict[int, float] = {}
    for split in splits:
        if split.operation == "all_reduce" and split.size_bytes and split.on_wire_s > 0:
            wires[split.size_bytes] = min(split.on_wire_s, wires.get(split.size_bytes, split.on_wire_s))
    return [CurvePoint(size, seconds) for size, seconds in sorted(wires.items())]
