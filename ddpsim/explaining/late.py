"""Which rank is late, in which phase, and why: from each rank's own work in a step, which holds no waiting.

After a collective all ranks look alike, for each has waited for the last. Loading, forward, backward, hooks and the
optimizer hold no waiting: the rank that takes longer in these than the others is the one they wait for. On a GPU host
and device work at once; a phase takes the longer of the two, and the cause is the one that has the excess.

An excess is a verdict (`late_rank`) where it passes all of four tests; `explain_uncertain_excess` says which one the
largest misses: a share of the step (`SHARE`), in most steps (`STEADY`), beyond the noise of its median (`SURE`), and
not made good in other phases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median

from ddpsim.common.units import format_time
from ddpsim.explaining.ranks import Row, TracedRank, common_iterations
from ddpsim.trace.records import PHASES, Iteration

SHARE = 0.015
"""Share of the step from which on a rank's excess counts: below what a straggler must cost in
`studies/stragglers/stragglers.py`, which derives it from its pilot runs."""
STEADY = 0.75
"""Share of the steps in which the rank must be behind the others' median: one step's hiccup is no verdict."""
SURE = 4.0
"""Standard errors of its median that an excess must exceed, "four" in the text; from the same pilot runs."""
_MAD = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""
_MEDIANS = 1.2533
"""Standard error of a median, in those of a mean: sqrt(pi / 2)."""
FEWEST = 3
"""Steps that every rank has whole: fewer do not separate an excess from a hiccup."""


@dataclass(frozen=True, slots=True)
class LateRank:
    """The rank that the others wait for."""

    rank: int
    phase: str
    """Of `PHASES`, in which most of its excess is."""
    cause: str
    """`forward`, `backward`, `optimizer` or `input` where the work itself takes longer; `host` where the device waits
    for launches, or hooks take longer."""
    seconds: float
    """Excess of a step over the median of the other ranks, in that phase."""
    behind_s: float
    """The same in all phases together."""
    steps: int
    """How many were compared."""

    def describe_elsewhere(self) -> str:
        """Return how far it is behind in all phases, in words, where that is a quarter more than in the one."""
        if self.behind_s < 1.25 * self.seconds:
            return ""
        return f", {format_time(self.behind_s)} in all phases together"


def late_rank(ranks: Sequence[TracedRank]) -> LateRank | None:
    """Return the rank that is late, None where none is, or where there is one rank alone or hardly a step."""
    steps = common_iterations(ranks, attrgetter("whole"))
    if len(ranks) < 2 or len(steps) < FEWEST:
        return None
    step_s = median(step.iteration_s for row in steps for step in row.values())
    verdicts = [late for rank in sorted(steps[0]) if (late := _late_rank(rank, steps, step_s)) is not None]
    return max(verdicts, key=lambda late: late.seconds, default=None)


def explain_no_verdict(ranks: Sequence[TracedRank]) -> str | None:
    """Return why the traces cannot show whether a rank is late, and what to do; None where they can."""
    if len(ranks) < 2:
        return None
    count = len(common_iterations(ranks, attrgetter("whole")))
    if count >= FEWEST:
        return None
    what = f"too few steps were seen to tell whether a rank is late: {count}, of at least {FEWEST}"
    every = next((rank.options["every"] for rank in ranks if "every" in rank.options), None)
    if isinstance(every, int) and every > 1:
        return f"{what}; `ddpexec.trace` stamped each {every}th step: trace with every=1"
    if any(rank.kind == "kineto" for rank in ranks):
        return f"{what}; record more of them: torch.profiler.schedule(..., active=10)"
    return f"{what}; run more iterations"


def excess_s(ranks: Sequence[TracedRank]) -> dict[int, dict[str, float]]:
    """Return by rank and phase the median over steps of its excess over the median of the other ranks, seconds."""
    steps = common_iterations(ranks, attrgetter("whole"))
    if len(ranks) < 2 or not steps:
        return {}
    return {rank: {phase: median(_excesses(rank, steps, _own(phase))) for phase in PHASES} for rank in sorted(steps[0])}


def explain_uncertain_excess(ranks: Sequence[TracedRank]) -> str | None:
    """Return the largest excess of a phase, and why it is no verdict.

    None where it is below `SHARE` of the step or is a verdict, and where there are too few steps.
    """
    steps = common_iterations(ranks, attrgetter("whole"))
    if len(ranks) < 2 or len(steps) < FEWEST:
        return None
    step_s = median(step.iteration_s for row in steps for step in row.values())
    each = {(rank, phase): _excesses(rank, steps, _own(phase)) for rank in sorted(steps[0]) for phase in PHASES}
    rank, phase = max(each, key=lambda which: median(each[which]))
    if (seconds := median(each[rank, phase])) < SHARE * step_s:
        return None
    # The tests of `_late_rank`, of the one excess that a reader sees in the table and asks about.
    why = _explain_chance(each[rank, phase])
    if why is None and median(_excesses(rank, steps, _total)) < (least_s := SHARE * step_s / 2):
        why = f"less than {format_time(least_s)} in all phases together"
    return why and f"rank {rank} takes {format_time(seconds)} more in {phase} (median of {len(steps)} steps), but {why}"


def _own(phase: str) -> Callable[[Iteration], float]:
    return lambda step: step.own_s(phase)


def _total(step: Iteration) -> float:
    return sum(step.own_s(phase) for phase in PHASES)


def _excesses(rank: int, steps: Sequence[Row], of: Callable[[Iteration], float]) -> list[float]:
    return [of(row[rank]) - median(of(step) for other, step in row.items() if other != rank) for row in steps]


def _late_rank(rank: int, steps: Sequence[Row], step_s: float) -> LateRank | None:
    # A rank that is slow in one phase and as much faster in another holds nobody up: only a part of the excess may be
    # made good.
    behind_s = median(_excesses(rank, steps, _total))
    if behind_s < SHARE * step_s / 2:
        return None
    by_phase = {phase: _excesses(rank, steps, _own(phase)) for phase in PHASES}
    large = {phase: each for phase, each in by_phase.items() if median(each) >= SHARE * step_s}
    sure = {phase: median(each) for phase, each in large.items() if _explain_chance(each) is None}
    if not sure:
        return None
    phase = max(sure, key=lambda name: sure[name])
    return LateRank(rank, phase, _cause(rank, phase, steps, sure[phase]), sure[phase], behind_s, len(steps))


def _explain_chance(excesses: Sequence[float]) -> str | None:
    """Return why the median of the excesses of some steps may be chance; None where it is not."""
    behind = sum(each > 0 for each in excesses)
    if behind < STEADY * len(excesses):
        return f"in {behind} of {len(excesses)} only"
    least_s = SURE * standard_error(excesses)
    if median(excesses) < least_s:
        return f"steps differ too much to be sure: four standard errors are {format_time(least_s)}"
    return None


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the median of `values`, by their median absolute deviation, robust to hiccups."""
    middle = median(values)
    deviation = _MAD * median(abs(each - middle) for each in values)
    return float(_MEDIANS * deviation / len(values) ** 0.5)


def _cause(rank: int, phase: str, steps: Sequence[Row], excess: float) -> str:
    """Return `host` where hooks take longer or the device's work does not explain the excess, else the phase."""
    if phase == "hooks":
        return "host"
    if phase == "input" or not any(step.device_s for row in steps for step in row.values()):
        return phase
    device_s = median(_excesses(rank, steps, lambda step: step.device_s.get(phase, 0.0)))
    return phase if device_s >= excess / 2 else "host"
