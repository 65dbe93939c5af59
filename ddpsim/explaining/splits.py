"""Each collective split into waiting for the last rank and time on the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from ddpsim.explaining.seen import SeenCollective, SeenRank


@dataclass(frozen=True, slots=True)
class MedianSplit:
    """Medians over steps.

    Attributes:
        wait_s: how long ranks waited for the last one, their mean.
        wire_s: from the last rank's start to the end.
        waits_s: by rank, of those whose traces there are.
        last_rank: which came last most often; None of one rank.
        bound: one rank alone was traced, or not all ranks take part in it, so that those of the first rank alone are
            told: the wire is taken to be as fast as in its fastest collective, `wire_s` is the
            most and `wait_s` the least that it may be, where one collective met no wait.
        ready_s, started_s, finished_s: on the first rank, from the start of its step.
    """

    index: int
    operation: str
    size_bytes: int | None
    parameters: int
    wait_s: float
    wire_s: float
    waits_s: Mapping[int, float]
    last_rank: int | None
    bound: bool
    ready_s: float
    started_s: float
    finished_s: float

    def document(self) -> dict[str, object]:
        """Return the split as JSON values."""
        return {**asdict(self), "waits_s": {str(rank): seconds for rank, seconds in self.waits_s.items()}}


def splits_of(ranks: Sequence[SeenRank], world_size: int) -> tuple[MedianSplit, ...]:
    """Return the collectives of a usual step, in launch order.

    Args:
        ranks: on one clock.
        world_size: where traces of ranks are missing the last to come may be one of them, and waits are the least.
    """
    usual = _find_usual(ranks)
    found = [_collect_stamps(ranks, index, usual) for index in range(usual)]
    several = len(ranks) > 1
    rates = _best_rates(ranks[0], usual)
    return tuple(_split(index, each, rates, several) for index, each in enumerate(found) if each)


Stamps = dict[int, tuple[float, SeenCollective]]


def _find_usual(ranks: Sequence[SeenRank]) -> int:
    counts = Counter(len(step.collectives) for rank in ranks for step in rank.steps if step.collectives)
    return counts.most_common(1)[0][0] if counts else 0


def _collect_stamps(ranks: Sequence[SeenRank], index: int, usual: int) -> list[Stamps]:
    """Return for each step that every rank has the collective of a number on each rank, with the step's start."""
    by_step: dict[int, Stamps] = {}
    for rank in ranks:
        for step in rank.steps:
            if len(step.collectives) == usual and rank.rank is not None:
                by_step.setdefault(step.number, {})[rank.rank] = (step.start_s, step.collectives[index])
    return [stamps for _, stamps in sorted(by_step.items()) if len(stamps) == len(ranks)]


def _best_rates(rank: SeenRank, usual: int) -> dict[tuple[str, bool], float]:
    """Return the bytes a second of one rank's fastest collective, by operation and whether it is of a bucket."""
    rates: dict[tuple[str, bool], float] = {}
    for step in rank.steps:
        for c in step.collectives[:usual]:
            if c.size_bytes and c.finished_s > c.started_s:
                rate = c.size_bytes / (c.finished_s - c.started_s)
                kind = c.operation, c.parameters > 0
                rates[kind] = max(rate, rates.get(kind, 0.0))
    return rates


def _split(index: int, steps: Sequence[Stamps], rates: Mapping[tuple[str, bool], float], several: bool) -> MedianSplit:
    lowest = min(steps[0])
    if several and not all(c.everyone for stamps in steps for _, c in stamps.values()):
        # Of those that some ranks make among themselves, other ranks' are others.
        steps, several = [{lowest: stamps[lowest]} for stamps in steps], False
    first = steps[0]
    ranks = sorted(first)
    size = first[ranks[0]][1].size_bytes
    rate = rates.get((first[ranks[0]][1].operation, first[ranks[0]][1].parameters > 0))
    waits: dict[int, list[float]] = {rank: [] for rank in ranks}
    wires, last = [], Counter[int]()
    for stamps in steps:
        if several:
            begin = max(c.started_s for _, c in stamps.values())
            last[max(stamps, key=lambda rank: stamps[rank][1].arrived_s)] += 1
        else:
            one = stamps[ranks[0]][1]
            shortest = size / rate if size and rate else one.finished_s - one.started_s
            begin = max(one.started_s, one.finished_s - shortest)
        for rank, (_, c) in stamps.items():
            waits[rank].append(max(0.0, min(begin, c.finished_s) - c.started_s))
        wires.append(max(0.0, median(c.finished_s for _, c in stamps.values()) - begin))
    zero = [stamps[ranks[0]] for stamps in steps]
    return MedianSplit(
        index=index,
        operation=first[ranks[0]][1].operation,
        size_bytes=size,
        parameters=first[ranks[0]][1].parameters,
        wait_s=median(fmean(waits[rank][n] for rank in ranks) for n in range(len(steps))),
        wire_s=median(wires),
        waits_s={rank: median(each) for rank, each in waits.items()},
        last_rank=last.most_common(1)[0][0] if several else None,
        bound=not several,
        ready_s=median(c.arrived_s - start_s for start_s, c in zero),
        started_s=median(c.started_s - start_s for start_s, c in zero),
        finished_s=median(c.finished_s - start_s for start_s, c in zero),
    )
