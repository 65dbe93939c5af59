"""The report of an explanation: who is late and what binds the step first, then the step beside its prediction."""

from __future__ import annotations

from collections.abc import Sequence

from ddpsim.common.tables import ResultTable
from ddpsim.common.units import format_count, format_time
from ddpsim.explaining.against import RunComparison
from ddpsim.explaining.explanation import CHANGES, COLLECTIVES, PARTS, RANKS, Explanation
from ddpsim.explaining.ranks import TracedRank
from ddpsim.explaining.splits import CollectiveSummary
from ddpsim.planning.worth import format_gain
from ddpsim.report.assumptions import doubt_tables
from ddpsim.report.charts.model import StackedBar
from ddpsim.report.charts.timeline import BROADCAST, TimelineStep, timeline_from_document
from ddpsim.report.model import BarChart, Report, StepsChart, Table, TimelineChart
from ddpsim.report.rows import MOST_ROWS, PART_NAMES
from ddpsim.report.wording import format_signed
from ddpsim.trace.records import BACKWARD, FORWARD, OPTIMIZER, WAIT, BucketTimes

_INPUT = "input"
_NAMES = {**PART_NAMES, "input_s": _INPUT}


def _name(part: str) -> str:
    return _NAMES.get(part) or f"{part.removesuffix('_s')} (not DDP's)"


_BOUND = {
    "host": "the host, which launches and loads while the device has nothing to do",
    "device": "the device's own work",
    "communication": "communication that no computation hides",
    "input": "what its loop does between steps, loading for one",
}


def explain_report(
    found: Explanation, *, title: str = "a traced run", command: str = "", since: RunComparison | None = None
) -> Report:
    """Return the report of an explanation.

    Args:
        found: what `ddpsim.explaining.explain` found.
        title: what was traced.
        command: that made it.
        since: what changed since an earlier run.
    """
    return Report(
        title=f"Where the step goes: {title}",
        verdict=(_verdict_since(since) + _step(found), _format_rank(found)),
        paste=_paste(found),
        notes=found.notes,
        command=command,
        sections=(
            *_list_since(since),
            *_advice(found),
            BarChart("Where the time goes", _bars(found), _BARS_NOTE),
            _terms(found),
            *_collectives(found),
            *_timeline(found),
            *_ranks(found),
            *_recorder(found),
            *_doubts(found),
            _traces(found),
        ),
    )


_BARS_NOTE = "The line below a bar is the 10th to 90th percentile: of the traced steps, and of the prediction's doubts."


def _verdict_since(since: RunComparison | None) -> str:
    if since is None:
        return ""
    said = since.verdict()
    return f"{said[:1].upper()}{said[1:]}. "


def _list_since(since: RunComparison | None) -> tuple[Table, ...]:
    if since is None:
        return ()
    note = "A change with a ? may be chance: it is no larger than steps of either run differ by, or 1.5 % of the step."
    times = tuple(Table(title, shown, note if title == CHANGES else "") for title, shown in since.tables().items())
    if not since.changed:
        return times
    lines = tuple((str(number), line) for number, line in enumerate(since.changed, start=1))
    return *times, Table("What else is different", ResultTable(("", "now, and then"), lines, frozenset({1})))


def _step(found: Explanation) -> str:
    traced, told = found.traced, found.predicted
    band = f"{format_time(traced.iteration_low_s)} to {format_time(traced.iteration_high_s)}"
    said = f"A traced step takes {format_time(traced.iteration_s)} ({band}), bound by {_name_bound(found)}"
    if found.profiler_s is not None:
        said += f"; {format_time(found.profiler_s)} of it is the profiler's"
    if told is None:
        return f"{said}."
    inside = "inside" if told.holds else "outside"
    return (
        f"{said}; predicted are {format_time(told.step_s)} ({format_signed(told.error)}), the trace {inside} the band."
    )


def _name_bound(found: Explanation) -> str:
    whose = found.bound == "rank" or len(found.shares.bounds) > 1
    return found.bound_text if whose else _BOUND[found.bound]


def _format_rank(found: Explanation) -> str:
    said = []
    if found.late is not None:
        late = found.late
        said.append(
            f"Rank {late.rank} is {format_time(late.seconds)} late a step in {late.phase} ({late.cause})"
            f"{late.describe_elsewhere()}."
        )
    if found.link is not None:
        said.append(f"A link is slow: {found.link.text()}.")
    if found.no_verdict_reason is not None:
        said.append(f"{found.no_verdict_reason[:1].upper()}{found.no_verdict_reason[1:]}.")
    elif not said:
        none = "None of the traced ranks is late" if found.ranks.missing else "No rank is late"
        none = f"{none}: {found.uncertain_excess}." if found.uncertain_excess else f"{none}."
        said.append(none if len(found.ranks.ranks) > 1 else "One rank alone is traced: none can be late.")
    if found.ranks.missing:
        said.append(f"{format_count(len(found.ranks.missing), 'rank')} of {found.ranks.world_size} left no trace.")
    return " ".join(said)


def _paste(found: Explanation) -> tuple[tuple[str, str], ...]:
    told = found.predicted
    if told is None or told.row is None or not (told.worth_it or told.trial):
        return ()
    gains = str(told.trial) if told.trial else f"gains {format_gain(*told.best_gain, 'of the step ')}"
    return ((gains, told.row.best.plan.torch),)


def _advice(found: Explanation) -> tuple[Table, ...]:
    if not found.advice:
        return ()
    rows = tuple((str(number), line) for number, line in enumerate(found.advice, start=1))
    return (Table("What to look at", ResultTable(("", "first things first"), rows, frozenset({1}))),)


def _bars(found: Explanation) -> tuple[StackedBar, ...]:
    traced, told = found.traced, found.predicted
    parts = _select_drawn(list(found.parts.items()))
    bars = [StackedBar("traced", parts, traced.iteration_low_s, traced.iteration_high_s)]
    if told is not None:
        bars.append(
            StackedBar(
                "predicted", _select_drawn([(t.name, t.predicted_s) for t in told.terms]), told.low_s, told.high_s
            )
        )
    return tuple(bars)


def _select_drawn(parts: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    return tuple((_name(name), max(0.0, seconds)) for name, seconds in parts)


def _terms(found: Explanation) -> Table:
    shown = found.tables()[PARTS]
    if found.predicted is None:
        return Table(PARTS, shown)
    note = "The prediction is of the traced configuration: its buckets, its machine, DDP's own host costs as traced."
    return Table("Traced and predicted", shown, note)


def _collectives(found: Explanation) -> tuple[Table, ...]:
    if not found.splits:
        return ()
    bound = "One rank alone: waiting is the least and the wire the most that they may be."
    several = not all(split.bound for split in found.splits)
    times = found.describe_times(several=several)
    note = f"{'' if several else f'{bound} '}{times[:1].upper()}{times[1:]}."
    said = f"{note} {found.buckets[:1].upper()}{found.buckets[1:]}." if found.buckets else note
    return (Table(COLLECTIVES, found.tables()[COLLECTIVES].first(MOST_ROWS), said),)


def _timeline(found: Explanation) -> tuple[TimelineChart, ...]:
    counts = tuple(len(split.parameters) or None for split in found.splits)
    lives = tuple(_life(split) for split in found.splits)
    steps = [TimelineStep("traced", found.traced.iteration_s, _phases(found), lives, counts)]
    if found.predicted is not None:
        prediction = found.predicted.prediction
        steps.append(timeline_from_document(prediction.document(), "predicted", prediction.critical_path.spans))
    note = "Parts one after another, and each collective's times, medians of the traced steps, on the lowest rank."
    return (TimelineChart("One step", (StepsChart("the run", tuple(steps)),), note),) if found.splits else ()


def _phases(found: Explanation) -> tuple[tuple[str, float, float], ...]:
    parts, step_s = found.parts, found.traced.iteration_s
    broadcast = parts["buffer_broadcast_s"]
    forward = broadcast + parts["forward_s"]
    ready = max((split.ready_s for split in found.splits), default=0.0)
    backward = max(forward + parts["backward_compute_s"], ready)
    update = step_s - parts["input_s"]
    phases = (
        (BROADCAST, 0.0, broadcast),
        (FORWARD, broadcast, forward),
        (BACKWARD, forward, backward),
        (WAIT, backward, backward + parts["exposed_comm_s"]),
        (OPTIMIZER, update - parts["optimizer_s"], update),
    )
    return tuple(phase for phase in phases if phase[2] > phase[1])


def _life(split: CollectiveSummary) -> BucketTimes:
    return BucketTimes(
        index=split.index,
        size_bytes=split.size_bytes or 0,
        parameters=(),
        ready_s=split.ready_s,
        launched_s=split.ready_s,
        started_s=max(split.started_s, split.ready_s),
        wire_s=max(split.started_s, split.finished_s - split.on_wire_s),
        finished_s=split.finished_s,
        written_s=split.finished_s,
    )


def _ranks(found: Explanation) -> tuple[Table, ...]:
    if not found.excess_s:
        return ()
    note = "What each rank takes by itself, before any collective, beyond the median of the others, ms a step."
    return (Table(RANKS, found.tables()[RANKS].first(MOST_ROWS), note),)


def _recorder(found: Explanation) -> tuple[Table, ...]:
    if found.recorded is None:
        return ()
    rows = tuple((line,) for line in found.recorded.lines())
    return (Table("NCCL's flight recorder", ResultTable(("what it says",), rows)),)


def _doubts(found: Explanation) -> tuple[Table, ...]:
    return () if found.predicted is None else tuple(doubt_tables([found.predicted.prediction.document()]))


def _traces(found: Explanation) -> Table:
    offsets = found.alignment.offsets_s
    rows = tuple(_trace(rank, offsets.get(rank.rank or 0, 0.0)) for rank in found.ranks.ranks[:MOST_ROWS])
    residual = format_time(found.alignment.residual_s)
    note = f"Clocks: ends of the same collective are {residual} apart (90th percentile) after the offsets."
    header = ("rank", "file", "written by", "device", "steps", "clock")
    return Table("Traces", ResultTable(header, rows, frozenset({1, 2, 3})), note)


def _trace(rank: TracedRank, offset_s: float) -> tuple[str, ...]:
    moved = f"{offset_s * 1e3:+.3f} ms" if offset_s else "as it is"
    return str(rank.rank), rank.place, rank.kind, rank.device, str(len(rank.iterations)), moved
