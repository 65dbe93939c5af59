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
        what = f"rank {late.rank} is {format_time(late.seconds)} late a step in {late.phase} (cause: {late.cause})"
        said.append(f"{what}: {_REMEDIES[late.cause]}")
    if found.link is not None:
        said.append(f"a link is slow: {found.link.text()}")
    added = found.ranks.ranks[0].accumulation
    if added is not None and (change := added.advice()) is not None:
        said.append(change)
    if found.profiler_s is not None and found.profiler_s > WORTH_IT * found.traced.iteration_s:
        said.append(
            f"the profiler takes {format_time(found.profiler_s)} of the traced step: what follows is of the traced step"
        )
    told = found.foretold
    if told is None:
        return replace(found, advice=tuple(said))
    if not told.holds:
        band = f"{format_time(told.low_s)} to {format_time(told.high_s)}"
        why = f"the predicted step of the traced job, {band}, does not include the traced {format_time(told.traced_s)}"
        return replace(found, advice=(*said, f"{why}: no advice on buckets"))
    if found.late is not None:
        said.append(f"no advice on buckets while the run waits for rank {found.late.rank}: fix that first")
    row = told.row
    if row is not None:
        if told.worth_it:
            said.append(f"other buckets save {format_gain(*told.best_gain, 'of the step ')}: {row.best.plan.torch}")
        elif told.trial is not None:
            said.append(f"keep the buckets; {told.trial}: {row.best.plan.torch}")
        else:
            said.append(f"keep the buckets: the best others save {format_gain(*told.best_gain, 'of the step ')}")
        said += [f"by {d.name} the gain may be {_format_ends(d)}; to narrow that: {d.remedy}" for d in told.gain_doubts]
    return replace(found, advice=tuple(said))


def _format_ends(doubt: Effect) -> str:
    return f"{100 * doubt.low:.1f} to {100 * doubt.high:.1f} %"
