"""What to change, the most worth first; nothing that rests on a prediction which the trace contradicts."""

from __future__ import annotations

from dataclasses import replace

from ddpsim.doubts.doubt import Effect
from ddpsim.explaining.explanation import Explanation
from ddpsim.planning.worth import WORTH_IT, format_gain
from ddpsim.units import format_time

_REMEDIES = {
    "input": "look at its data loading: workers, storage, what its loop does between steps",
    "forward": "look at what it computes in forward: its device's clock and temperature, longer inputs",
    "backward": "look at what it computes in backward: its device's clock and temperature, longer inputs",
    "optimizer": "look at what its optimizer does that others' do not",
    "host": "look at its processor: other load, its clock, threads, where it is bound to",
}


def advice_of(found: Explanation) -> Explanation:
    """Return `found` with its advice."""
    said: list[str] = []
    if found.late is not None:
        late = found.late
        what = f"rank {late.rank} is {format_time(late.seconds)} late a step in {late.phase} ({late.cause})"
        said.append(f"{what}: {_REMEDIES[late.cause]}")
    if found.link is not None:
        said.append(f"a link is slow: {found.link.text()}")
    added = found.ranks.ranks[0].accumulation
    if added is not None and (change := added.advice()) is not None:
        said.append(change)
    if found.profiler_s is not None and found.profiler_s > WORTH_IT * found.traced.step_s:
        said.append(
            f"{format_time(found.profiler_s)} of the traced step is the profiler's: what follows is of the traced step"
        )
    told = found.foretold
    if told is None:
        return replace(found, advice=tuple(said))
    if not told.holds:
        band = f"{format_time(told.low_s)} to {format_time(told.high_s)}"
        why = f"the prediction of the traced configuration, {band}, does not hold {format_time(told.traced_s)}"
        return replace(found, advice=(*said, f"{why}: no advice on buckets rests on it"))
    if found.late is not None:
        said.append(f"no advice on buckets rests on a run that waits for rank {found.late.rank}: mend that first")
    row = told.row
    if row is not None:
        if told.worth_it:
            said.append(f"other buckets gain {format_gain(*told.best_gain, 'of the step ')}: {row.best.plan.torch}")
        elif told.trial is not None:
            said.append(f"keep the buckets; {told.trial}: {row.best.plan.torch}")
        else:
            said.append(f"keep the buckets: the best others gain {format_gain(*told.best_gain)}")
        said += [f"{doubt.name} leaves {_format_ends(doubt)} of it open: {doubt.remedy}" for doubt in told.gain_doubts]
    return replace(found, advice=tuple(said))


def _format_ends(doubt: Effect) -> str:
    return f"{100 * doubt.low:.1f} to {100 * doubt.high:.1f} %"
