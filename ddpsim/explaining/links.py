"""A slow link: collectives that take longer on the wire than the machine's table, though every rank was there.

Two things tell it from load on the hosts. It is there in every step, so that the quickest steps show it as the others
do. And in a ring it leaves its mark on the ends: what crosses the slow link last arrives last, so that the rank behind
it and the rank at it leave a collective after all others, in every step alike. That mark needs no table, but three
ranks, and clocks that agree by themselves: aligning them by these ends would take it away. It is of gloo, whose ring
takes a share of the message in two segments; the pieces of NCCL are too small to leave one.
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
"""Share of the step that it must cost beyond the expected; likewise."""
UNSTEADY = 1.35
"""Median over 10th percentile of a step's communication from which on load is as good a reason, where no mark tells."""
MARK, ALONE = 0.05, 0.1
"""Shares of a collective's time by which the last rank leaves it after the first where a link is slow: beside a table
that it is held against, and alone. Without one pilot runs had up to 0.03, with one 0.14 and more."""


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link that carries less than the machine's, or than the others.

    Attributes:
        factor: traced over expected time of a step's communication; None where nothing says what to expect.
        seconds: of a step beyond the expected; by which the last rank leaves collectives after the first without that.
        ranks: between which, or at whose network card, it is: those that leave collectives last; empty where the
            stamps do not tell.
        source: what the verdict rests on.
    """

    factor: float | None
    seconds: float
    ranks: tuple[int, ...]
    source: str

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
        machine: what collectives should take; None, or an assumed one, says nothing of that.
        backend: of the run.
        step_s: the traced step.
        agreed: whether their clocks agreed as they were.
    """
    # Layers' own may be of fewer ranks, of which no table says what they take.
    rows = common_iterations(ranks, lambda it: any(each.own for each in it.collectives))
    own = [{rank: [each for each in it.collectives if each.own] for rank, it in row.items()} for row in rows]
    steps: list[Row] = [row for row in own if len({len(each) for each in row.values()}) == 1]
    if len(ranks) < 2 or len(steps) < 3:
        return None
    tells = agreed and len(ranks) > 2 and backend == "gloo"
    if machine is not None and not machine.assumed:
        factor, seconds, steady = _measure_excess(steps, machine, backend)
        if factor is not None:
            marked = _find_slow_link_ranks(steps, MARK) if tells else ()
            slow = factor >= FACTOR and seconds >= SHARE * step_s and (bool(marked) if tells else steady)
            source = f"of {machine.topology.name}'s {'table' if machine.calibration is not None else 'model'}"
            return SlowLink(factor, seconds, marked, source) if slow else None
    marked = _find_slow_link_ranks(steps, ALONE) if tells else ()
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
    """Return the two ranks, neighbours, that leave the largest collective last in every step; none without a mark."""
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
