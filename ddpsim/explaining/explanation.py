"""The explanation of a traced run as data: its advice in sentences, its tables, and the `explain` document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass

from ddpsim.common.tables import ResultTable, table_of
from ddpsim.common.tables.cells import ms_more
from ddpsim.common.units import format_time
from ddpsim.explaining.bound import Bound, StepShares, describe_binding
from ddpsim.explaining.clocks import Alignment
from ddpsim.explaining.files import Ranks
from ddpsim.explaining.late import LateRank
from ddpsim.explaining.links import SlowLink
from ddpsim.explaining.predicted import PredictedBreakdown
from ddpsim.explaining.ranks import UNPREDICTED, traced_parts
from ddpsim.explaining.recorder import RecorderDumps
from ddpsim.explaining.splits import CollectiveSummary
from ddpsim.planning.worth import WORTH_IT, format_gain
from ddpsim.trace.metrics import Summary
from ddpsim.trace.tables import PART_NAMES

PARTS, COLLECTIVES, RANKS = "Parts of the step", "Collectives", "Ranks"
CHANGES, MOVED = "What changed", "Collectives, before and now"
"""Titles of tables."""


def part_name(part: str) -> str:
    """Return what a part of a step is called."""
    names = {**PART_NAMES, "input_s": "input, loop"}
    return names.get(part) or f"{part.removesuffix('_s')} (not DDP's)"


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation says where a traced step goes, who is late, and what would change it."""

    ranks: Ranks
    """The traces, and the ranks of which there is none."""
    alignment: Alignment
    traced: Summary
    """The usual step: the median period of the slowest rank, with the parts of the lowest rank's steps."""
    shares: StepShares
    splits: tuple[CollectiveSummary, ...]
    """Collectives of a usual step, in launch order."""
    late: LateRank | None
    link: SlowLink | None
    excess_s: Mapping[int, Mapping[str, float]]
    """By rank and phase, seconds a step beyond the median of the other ranks."""
    predicted: PredictedBreakdown | None
    recorded: RecorderDumps | None
    untraced_s: float | None
    """A step without the profiler, as the user states it."""
    notes: tuple[str, ...]
    """What was left out or assumed, and why there is no prediction."""
    buckets: str = ""
    """Which of torch's caps give the traced buckets."""
    no_verdict_reason: str | None = None
    """Why the traces cannot show whether a rank is late; None where they can."""
    uncertain_excess: str | None = None
    """The largest excess of a phase that is no verdict, and which condition it misses; None where there is none."""

    @property
    def lead(self) -> int:
        """The lowest traced rank, whose parts and moments are shown."""
        return self.ranks.ranks[0].rank or 0

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the traced step in their order: `PARTS`, and those of collectives that are not DDP's."""
        return traced_parts(self.traced)

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences, the most worth first; empty where there is none to give."""
        return _advise(self)

    @property
    def bound(self) -> Bound:
        """What the step is bound by."""
        return self.shares.bounds[0]

    @property
    def bound_text(self) -> str:
        """What the step is bound by in words, both where two are near."""
        late = None if self.late is None else self.late.rank
        return describe_binding(self.shares.bounds, self.shares.waits_for if late is None else late)

    @property
    def profiler_s(self) -> float | None:
        """What the profiler cost a step; None where no untraced step is given."""
        return None if self.untraced_s is None else self.traced.iteration_s - self.untraced_s

    @property
    def unpredicted(self) -> str | None:
        """Why there is no prediction; None where there is one, or none was asked for."""
        if self.predicted is not None:
            return None
        return next((why for note in self.notes if (why := note.partition(UNPREDICTED)[2])), None)

    def describe_times(self, *, several: bool) -> str:
        """Return what the times of the table of collectives are of; `several` ranks were traced, or one."""
        moments = f"ready (launched, earlier ones finished), started and finished on rank {self.lead}"
        split = "; waiting for the last rank, mean over ranks; wire after it has come" if several else ""
        each = "each number is a median over steps, so that they need not add up"
        return f"{moments}, since its step began{split}; {each}"

    def tables(self) -> dict[str, ResultTable]:
        """Return the step's parts, its collectives and its ranks as tables, by titles."""
        return _tables(self)

    def document(self) -> dict[str, object]:
        """Return the `explain` document."""
        accumulation, keys = self.ranks.ranks[0].accumulation, ("micro_batches", "reducing", "waits_s")
        return {
            "traced": {
                "step_s": self.traced.iteration_s,
                "step_low_s": self.traced.iteration_low_s,
                "step_high_s": self.traced.iteration_high_s,
                "parts": self.parts,
                "steps": self.traced.iterations,
                "rank": self.lead,
            },
            "predicted": None if self.predicted is None else self.predicted.document(),
            "accumulation": None if accumulation is None else dict(zip(keys, astuple(accumulation), strict=True)),
            "late_rank": None if self.late is None else asdict(self.late),
            "unpredicted": self.unpredicted,
            "late_untold": self.no_verdict_reason,
            "late_unsure": self.uncertain_excess,
            "slow_link": None if self.link is None else {**asdict(self.link), "ranks": list(self.link.ranks)},
            "bound": self.bound,
            "bound_beside": next(iter(self.shares.bounds[1:]), None),
            "shares": asdict(self.shares),
            "collectives": [split.document() for split in self.splits],
            "excess_s": {str(rank): dict(phases) for rank, phases in self.excess_s.items()},
            "ranks": [rank.rank for rank in self.ranks.ranks],
            "missing_ranks": list(self.ranks.missing),
            "world_size": self.ranks.world_size,
            "clocks": {
                "offsets_s": {str(rank): offset for rank, offset in self.alignment.offsets_s.items()},
                "residual_s": self.alignment.residual_s,
                "collectives": self.alignment.collectives,
            },
            "buckets": self.buckets,
            "untraced_step_s": self.untraced_s,
            "profiler_s": self.profiler_s,
            "flight_recorder": None if self.recorded is None else self.recorded.document(),
            "advice": list(self.advice),
            "notes": list(self.notes),
        }


_REMEDIES = {
    "input": "look at its data loading: workers, storage, what its loop does between steps",
    "forward": "look at what it computes in forward: its device's clock and temperature, longer inputs",
    "backward": "look at what it computes in backward: its device's clock and temperature, longer inputs",
    "optimizer": "look at what its optimizer does that others' do not",
    "host": "look at its processor: other load, its clock, threads, where it is bound to",
}


def _advise(explanation: Explanation) -> tuple[str, ...]:
    """Return what to change, the most worth first.

    A late rank and a slow link come first: they cost more than buckets save, and the traces alone show both. What
    follows rests on the prediction, and is left out where the traced step lies outside the predicted band: a model that
    misses the present buckets says nothing of others.
    """
    advice: list[str] = []
    if explanation.late is not None:
        late = explanation.late
        what = f"rank {late.rank} is {format_time(late.seconds)} late a step in {late.phase} (cause: {late.cause})"
        advice.append(f"{what}: {_REMEDIES[late.cause]}")
    if explanation.link is not None:
        advice.append(f"a link is slow: {explanation.link.text()}")
    accumulation = explanation.ranks.ranks[0].accumulation
    if accumulation is not None and (change := accumulation.advice()) is not None:
        advice.append(change)
    if explanation.profiler_s is not None and explanation.profiler_s > WORTH_IT * explanation.traced.iteration_s:
        profiler = f"the profiler takes {format_time(explanation.profiler_s)} of the traced step"
        advice.append(f"{profiler}: what follows is of the traced step")
    predicted = explanation.predicted
    if predicted is None:
        return tuple(advice)
    if not predicted.holds:
        band = f"{format_time(predicted.low_s)} to {format_time(predicted.high_s)}"
        traced = format_time(predicted.traced_s)
        why = f"the predicted step of the traced job, {band}, does not include the traced {traced}"
        return (*advice, f"{why}: no advice on buckets")
    if explanation.late is not None:
        advice.append(f"no advice on buckets while the run waits for rank {explanation.late.rank}: fix that first")
    row = predicted.row
    if row is not None:
        gain = format_gain(*predicted.best_gain, "of the step ")
        if predicted.worth_it:
            advice.append(f"other buckets save {gain}: {row.best.plan.torch}")
        elif predicted.trial is not None:
            advice.append(f"keep the buckets; {predicted.trial}: {row.best.plan.torch}")
        else:
            advice.append(f"keep the buckets: the best others save {gain}")
        for doubt in predicted.gain_doubts:
            ends = f"{100 * doubt.low:.1f} to {100 * doubt.high:.1f} %"
            advice.append(f"by {doubt.name} the gain may be {ends}; to narrow that: {doubt.remedy}")
    return tuple(advice)


def _tables(explanation: Explanation) -> dict[str, ResultTable]:
    """Return the tables by their titles; of collectives and of several ranks only where there are any."""
    tables = {PARTS: _parts(explanation)}
    if explanation.splits:
        splits = [
            {"collective": split.index, "gradients": len(split.parameters) or None, **split.document()}
            for split in explanation.splits
        ]
        tables[COLLECTIVES] = table_of("explain: collectives", splits)
    if explanation.excess_s:
        excess = {rank: {**phases, "all": sum(phases.values())} for rank, phases in explanation.excess_s.items()}
        ranks = [{"rank": rank, **{p: ms_more(s) for p, s in each.items()}} for rank, each in excess.items()]
        tables[RANKS] = table_of("", ranks)
    return tables


def _parts(explanation: Explanation) -> ResultTable:
    step_s, predicted = explanation.traced.iteration_s, explanation.predicted
    rows: list[tuple[str, float, float | None]] = [(part_name(part), s, None) for part, s in explanation.parts.items()]
    if predicted is not None:
        rows = [(part_name(term.name), term.traced_s, term.predicted_s) for term in predicted.terms]
        rows.append(("step", predicted.traced_s, predicted.step_s))
    shares = explanation.shares
    broadcast_s, waiting = shares.broadcast_wait_s, describe_binding(["rank"], shares.waits_for)
    # Waiting for a late rank is a part of two of the parts: it stands indented below each.
    for part, wait_s in (("exposed_comm_s", shares.waiting_s - broadcast_s), ("buffer_broadcast_s", broadcast_s)):
        place, part_s = next((place, row[1]) for place, row in enumerate(rows, 1) if row[0] == part_name(part))
        if wait_s > 0:
            rows.insert(place, (f"  of which {waiting}", min(wait_s, part_s), None))
    shown = [
        {
            "part": part,
            "traced_s": traced_s,
            "share": traced_s / step_s,
            "predicted_s": predicted_s,
            "share_of_step": None if predicted_s is None else (predicted_s - traced_s) / step_s,
        }
        for part, traced_s, predicted_s in rows
    ]
    return table_of("", shown)
