"""The report of an explanation: first the late rank and what binds the step, then the step against its prediction.

`explain_report` lists the sections in the order of the page; each function below it makes one of them.
"""

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
    run: Explanation, *, title: str = "a traced run", command: str = "", since: RunComparison | None = None
) -> Report:
    """Return the report of an explanation.

    Args:
        explanation: the result of `ddpsim.explaining.explain`.
        title: name of the traced run.
        command: the command line that makes the page.
        since: the comparison with an earlier run.
    """
    return Report(
        title=f"Where the step goes: {title}",
        verdict=(_verdict_since(since) + _step(run), _format_rank(run)),
        paste=_paste(run),
        notes=run.notes,
        command=command,
        sections=(
            *_list_since(since),
            *_advice(run),
            BarChart("Where the time goes", _bars(run), _BARS_NOTE),
            _terms(run),
            *_collectives(run),
            *_timeline(run),
            *_ranks(run),
            *_recorder(run),
            *_doubts(run),
            _traces(run),
        ),
    )


_BARS_NOTE = "The line below a bar is the 10th to 90th percentile: of the traced steps, and of the prediction's doubts."


def _verdict_since(since: RunComparison | None) -> str:
    if since is None:
        return ""
    sentence = since.verdict()
    return f"{sentence[:1].upper()}{sentence[1:]}. "


def _list_since(since: RunComparison | None) -> tuple[Table, ...]:
    if since is None:
        return ()
    note = "A change with a ? may be chance: it is no larger than steps of either run differ by, or 1.5 % of the step."
    times = tuple(Table(title, shown, note if title == CHANGES else "") for title, shown in since.tables().items())
    if not since.changed:
        return times
    lines = tuple((str(number), line) for number, line in enumerate(since.changed, start=1))
    return *times, Table("What else is different", ResultTable(("", "now, and then"), lines, frozenset({1})))


def _step(run: Explanation) -> str:
    traced, predicted = run.traced, run.predicted
    band = f"{format_time(traced.iteration_low_s)} to {format_time(traced.iteration_high_s)}"
    sentence = f"A traced step takes {format_time(traced.iteration_s)} ({band}), bound by {_name_bound(run)}"
    if run.profiler_s is not None:
        sentence += f"; {format_time(run.profiler_s)} of it is the profiler's"
    if predicted is None:
        return f"{sentence}."
    inside = "inside" if predicted.holds else "outside"
    step = f"{format_time(predicted.step_s)} ({format_signed(predicted.error)})"
    return f"{sentence}; predicted are {step}, the trace {inside} the band."


def _name_bound(run: Explanation) -> str:
    whose = run.bound == "rank" or len(run.shares.bounds) > 1
    return run.bound_text if whose else _BOUND[run.bound]


def _format_rank(run: Explanation) -> str:
    sentences = []
    if run.late is not None:
        late = run.late
        sentences.append(
            f"Rank {late.rank} is {format_time(late.seconds)} late a step in {late.phase} ({late.cause})"
            f"{late.describe_elsewhere()}."
        )
    if run.link is not None:
        sentences.append(f"A link is slow: {run.link.text()}.")
    if run.no_verdict_reason is not None:
        sentences.append(f"{run.no_verdict_reason[:1].upper()}{run.no_verdict_reason[1:]}.")
    elif not sentences:
        none = "None of the traced ranks is late" if run.ranks.missing else "No rank is late"
        none = f"{none}: {run.uncertain_excess}." if run.uncertain_excess else f"{none}."
        sentences.append(none if len(run.ranks.ranks) > 1 else "One rank alone is traced: none can be late.")
    if run.ranks.missing:
        sentences.append(f"{format_count(len(run.ranks.missing), 'rank')} of {run.ranks.world_size} left no trace.")
    return " ".join(sentences)


def _paste(run: Explanation) -> tuple[tuple[str, str], ...]:
    predicted = run.predicted
    if predicted is None or predicted.row is None or not (predicted.worth_it or predicted.trial):
        return ()
    gains = str(predicted.trial) if predicted.trial else f"gains {format_gain(*predicted.best_gain, 'of the step ')}"
    return ((gains, predicted.row.best.plan.torch),)


def _advice(run: Explanation) -> tuple[Table, ...]:
    if not run.advice:
        return ()
    rows = tuple((str(number), line) for number, line in enumerate(run.advice, start=1))
    return (Table("What to look at", ResultTable(("", "first things first"), rows, frozenset({1}))),)


def _bars(run: Explanation) -> tuple[StackedBar, ...]:
    traced, predicted = run.traced, run.predicted
    parts = _select_drawn(list(run.parts.items()))
    bars = [StackedBar("traced", parts, traced.iteration_low_s, traced.iteration_high_s)]
    if predicted is not None:
        bars.append(
            StackedBar(
                "predicted",
                _select_drawn([(t.name, t.predicted_s) for t in predicted.terms]),
                predicted.low_s,
                predicted.high_s,
            )
        )
    return tuple(bars)


def _select_drawn(parts: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    return tuple((_name(name), max(0.0, seconds)) for name, seconds in parts)


def _terms(run: Explanation) -> Table:
    shown = run.tables()[PARTS]
    if run.predicted is None:
        return Table(PARTS, shown)
    note = "The prediction is of the traced configuration: its buckets, its machine, DDP's own host costs as traced."
    return Table("Traced and predicted", shown, note)


def _collectives(run: Explanation) -> tuple[Table, ...]:
    if not run.splits:
        return ()
    bound = "One rank alone: waiting is the least and the wire the most that they may be."
    several = not all(split.bound for split in run.splits)
    times = run.describe_times(several=several)
    note = f"{'' if several else f'{bound} '}{times[:1].upper()}{times[1:]}."
    text = f"{note} {run.buckets[:1].upper()}{run.buckets[1:]}." if run.buckets else note
    return (Table(COLLECTIVES, run.tables()[COLLECTIVES].first(MOST_ROWS), text),)


def _timeline(run: Explanation) -> tuple[TimelineChart, ...]:
    counts = tuple(len(split.parameters) or None for split in run.splits)
    lives = tuple(_life(split) for split in run.splits)
    steps = [TimelineStep("traced", run.traced.iteration_s, _phases(run), lives, counts)]
    if run.predicted is not None:
        prediction = run.predicted.prediction
        steps.append(timeline_from_document(prediction.document(), "predicted", prediction.critical_path.spans))
    note = "Parts one after another, and each collective's times, medians of the traced steps, on the lowest rank."
    return (TimelineChart("One step", (StepsChart("the run", tuple(steps)),), note),) if run.splits else ()


def _phases(run: Explanation) -> tuple[tuple[str, float, float], ...]:
    parts, step_s = run.parts, run.traced.iteration_s
    broadcast = parts["buffer_broadcast_s"]
    forward = broadcast + parts["forward_s"]
    ready = max((split.ready_s for split in run.splits), default=0.0)
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


def _ranks(run: Explanation) -> tuple[Table, ...]:
    if not run.excess_s:
        return ()
    note = "What each rank takes by itself, before any collective, beyond the median of the others, ms a step."
    return (Table(RANKS, run.tables()[RANKS].first(MOST_ROWS), note),)


def _recorder(run: Explanation) -> tuple[Table, ...]:
    if run.recorded is None:
        return ()
    rows = tuple((line,) for line in run.recorded.lines())
    return (Table("NCCL's flight recorder", ResultTable(("what it says",), rows)),)


def _doubts(run: Explanation) -> tuple[Table, ...]:
    return () if run.predicted is None else tuple(doubt_tables([run.predicted.prediction.document()]))


def _traces(run: Explanation) -> Table:
    offsets = run.alignment.offsets_s
    rows = tuple(_trace(rank, offsets.get(rank.rank or 0, 0.0)) for rank in run.ranks.ranks[:MOST_ROWS])
    residual = format_time(run.alignment.residual_s)
    note = f"Clocks: ends of the same collective are {residual} apart (90th percentile) after the offsets."
    header = ("rank", "file", "written by", "device", "steps", "clock")
    return Table("Traces", ResultTable(header, rows, frozenset({1, 2, 3})), note)


def _trace(rank: TracedRank, offset_s: float) -> tuple[str, ...]:
    moved = f"{offset_s * 1e3:+.3f} ms" if offset_s else "as it is"
    return str(rank.rank), rank.place, rank.kind, rank.device, str(len(rank.iterations)), moved
