"""A slow link: collectives that take longer on the wire than the machine's table, though every rank was there.

Two signs separate it from load on the hosts. It is there in every step, so that the quickest steps show it as all
others do. And in a ring it leaves a mark on the ends: the piece that crosses the slow link last arrives last, so that
the two ranks at that link leave a collective after all others, in every step alike. The mark needs no table, but three
ranks, and clocks that agree by themselves: aligning clocks by these ends would remove it. Only gloo leaves one, whose
ring sends a rank's share of the message in two segments; NCCL's pieces are too small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddpsim.collectives.execute import make_transport
from ddpsim.common.errors import InputError
from ddpsim.common.operation import Operation
from ddpsim.explaining.late import SURE, standard_error
from ddpsim.explaining.machine import TracedMachine
from ddpsim.explaining.ranks import TracedRank, common_iterations
from ddpsim.topology.placement import place
from ddpsim.trace.metrics import length, quantile, union
from ddpsim.trace.records import CollectiveTimes

FACTOR = 1.25
"""Traced over expected time of communication from which on a link is slow; healthy pilot runs of
`studies/stragglers/stragglers.py` had 0.9 to 1.05."""
SHARE = 0.01
"""Share of the step that it must cost beyond the expected; from the same pilot runs."""
UNSTEADY = 1.35
"""Median over 10th percentile of a step's communication from which load explains it as well, without a mark."""
MARK, ALONE = 0.05, 0.1
"""Shares of a collective's time by which the last rank leaves it after the first where a link is slow: as a second sign
after a table's, and as the only one. Pilot runs had up to 0.03 without a slow link, 0.14 and more with one."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link that carries less than the machine's, or than the others."""

    factor: float | None
    """Traced over expected time of a step's communication; None where no table says what to expect."""
    seconds: float
    """Of a step beyond the expected; without a table, by which the last rank leaves a collective after the first."""
    ranks: tuple[int, ...]
    """The two ranks at the link, which leave collectives last; empty where there is no mark."""
    source: str
    """What the verdict rests on, in words."""

    def text(self) -> str:
        """Return it in words."""
        where = f"between ranks {self.ranks[0]} and {self.ranks[1]}, or at the card of one: " if self.ranks else ""
        slow = "" if self.factor is None else f"communication takes {self.factor:.2f} times what is expected; "
        return f"{where}{slow}{self.source}"


def find_slow_link(
    ranks: Sequence[TracedRank], machine: TracedMachine | None, backend: str, step_s: float, *, agreed: bool
) -> SlowLink | None:
    """Return the slow link that a run shows, None where it shows none.

    Args:
        ranks: on one clock.
        machine: whose table or model says what collectives should take; an assumed machine has the traced times
            themselves, and no expectation.
        backend: of the run.
        step_s: the traced step.
        agreed: whether the clocks of ranks agreed before they were aligned.
    """
    # DDP's collectives alone: those of layers may be of some ranks, for which there is no expectation.
    rows = common_iterations(ranks, lambda it: any(each.own for each in it.collectives))
    own = [{rank: [each for each in it.collectives if each.own] for rank, it in row.items()} for row in rows]
    steps: list[Row] = [row for row in own if len({len(each) for each in row.values()}) == 1]
    if len(ranks) < 2 or len(steps) < 3:
        return None
    marks_possible = agreed and len(ranks) > 2 and backend == "gloo"
    if machine is not None and not machine.assumed:
        factor, seconds, steady = _measure_excess(steps, machine, backend)
        if factor is not None:
            marked = _find_slow_link_ranks(steps, MARK) if marks_possible else ()
            # Where there could be a mark, its absence acquits the link; where not, steps must at least be alike.
            slow = factor >= FACTOR and seconds >= SHARE * step_s and (bool(marked) if marks_possible else steady)
            source = f"of {machine.topology.name}'s {'table' if machine.calibration is not None else 'model'}"
            return SlowLink(factor, seconds, marked, source) if slow else None
    marked = _find_slow_link_ranks(steps, ALONE) if marks_possible else ()
    if not marked:
        return None
    ends = [[[each.finished_s for each in at] for at in zip(*row.values(), strict=True)] for row in steps]
    apart = median(median(max(each) - min(each) for each in row) for row in ends)
    return SlowLink(None, apart, marked, "these ranks leave every collective after the others")


Row = Mapping[int, Sequence[CollectiveTimes]]
"""The collectives of one step, by rank."""


def _measure_excess(steps: Sequence[Row], machine: TracedMachine, backend: str) -> tuple[float | None, float, bool]:
    """Return traced over expected communication, the seconds beyond, and whether all steps show it alike.

    Collectives that overlap share the wire: counted is the time in which any was on it, in the quicker steps.
    """
    sent = [row[min(row)] for row in steps]
    if any(each.size_bytes is None for step in sent for each in step):
        return None, 0.0, False
    try:
        transport = make_transport(
            place(machine.topology, machine.nodes, machine.gpus_per_node), backend, machine.calibration
        )
        known = [sum(transport.time_s(Operation.named(c.operation), c.size_bytes or 0) for c in step) for step in sent]
    except InputError:
        return None, 0.0, False
    if not min(known) > 0:
        return None, 0.0, False
    times = [_measure_wire_s(row) for row in steps]
    ratios = [time_s / each for time_s, each in zip(times, known, strict=True)]
    low, middle = quantile(ratios, 0.1), median(ratios)
    return low, (low - 1) * median(known), middle <= UNSTEADY * low


def _measure_wire_s(row: Row) -> float:
    spans = []
    for at in zip(*row.values(), strict=True):
        begin = max(each.started_s for each in at)
        spans.append((begin, max(begin, median(each.finished_s for each in at))))
    return length(union(spans))


def _find_slow_link_ranks(steps: Sequence[Row], least: float) -> tuple[int, ...]:
    """Return the two ranks that leave the largest collective last in every step; none without a mark.

    The largest collective has the longest pieces, and so the clearest mark. Each condition is against another false
    alarm: the last rank lags the first by a share of the wire time (stamps jitter) and by `SURE` standard errors (a
    hiccup); and the two are neighbours on the ring, or at least leave in the same order in most steps.
    """
    ranks = list(steps[0])
    sent = steps[0][ranks[0]]
    largest = max(range(len(sent)), key=lambda n: sent[n].size_bytes or 0)
    lags: dict[int, list[float]] = {rank: [] for rank in ranks}
    wires = []
    for row in steps:
        at = {rank: each[largest] for rank, each in row.items() if len(each) > largest}
        if len(at) < len(ranks):
            return ()
        middle = median(each.finished_s for each in at.values())
        wires.append(middle - max(each.started_s for each in at.values()))
        for rank, each in at.items():
            lags[rank].append(each.finished_s - middle)
    last, second, *_ = sorted(ranks, key=lambda rank: median(lags[rank]), reverse=True)
    first = min(ranks, key=lambda rank: median(lags[rank]))
    apart = [a - b for a, b in zip(lags[last], lags[first], strict=True)]
    if median(apart) < least * median(wires) or median(apart) < SURE * standard_error(apart):
        return ()
    others = [a - b for a, b in zip(lags[second], lags[last], strict=True)]
    count = len(ranks)
    neighbours = (last - second) % count in (1, count - 1)
    return (last, second) if neighbours or median(others) < 0 else ()
