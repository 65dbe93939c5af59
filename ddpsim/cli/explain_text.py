"""What `ddpsim explain` prints: the answer, then the step, its prediction, collectives, ranks; or a tuner's rounds."""

from __future__ import annotations

from ddpsim.cli.output import first_rows
from ddpsim.common.documents.fields import document_of
from ddpsim.common.other_work import OtherWork
from ddpsim.common.tables import break_line, table_of
from ddpsim.common.tables.cells import ms, percent
from ddpsim.common.units import format_bandwidth, format_count, format_time
from ddpsim.explaining.against import RunComparison
from ddpsim.explaining.explanation import CHANGES, COLLECTIVES, MOVED, PARTS, RANKS, Explanation
from ddpsim.explaining.tuned import Tuning, TuningRound
from ddpsim.prediction.path import format_helps_most
from ddpsim.workload.kineto.steps import describe_accumulation

_SHOWN = 24
"""Rows of collectives in the text, `--json` has all; chosen by hand, for one screen."""


def text(found: Explanation) -> str:
    """Return the explanation as text."""
    answer = [_step(found), _format_rank(found), _advice(found)]
    blocks = [*answer, _parts(found), _buckets(found), _collectives(found), _ranks(found)]
    return "\n\n".join(block for block in blocks if block)


def changes(since: RunComparison) -> str:
    """Return what changed since an earlier run as text; a change that the steps do not show surely has a `?`."""
    tables = since.tables()
    lines = [since.verdict(), "", tables[CHANGES].text("  ")]
    if MOVED in tables:
        lines += ["", tables[MOVED].text()]
    if since.changed:
        lines += ["", *(break_line(f"- {line}") for line in since.changed)]
    return "\n".join(lines)


def _step(found: Explanation) -> str:
    traced, ranks = found.traced, found.ranks
    band = f"{format_time(traced.iteration_low_s)} to {format_time(traced.iteration_high_s)}"
    usual = f"{format_time(traced.iteration_s)} ({band}), median of {format_count(traced.iterations, 'step')}"
    lines = [f"traced step  {usual}; bottleneck: {found.bound_text}"]
    if found.profiler_s is not None and found.untraced_s is not None:
        lines.append(f"profiler     {format_time(found.profiler_s)} of it; without it {format_time(found.untraced_s)}")
    if (added := ranks.ranks[0].accumulation) is not None:
        lines.append(describe_accumulation(added.accumulate, added.reducing))
    have = f"{len(ranks.ranks)} of {format_count(ranks.world_size, 'rank')} traced"
    missing = ", ".join(str(rank) for rank in ranks.missing[:16])
    lines.append(f"{have}{f', missing: {missing}' if missing else ''}")
    if len(ranks.ranks) > 1:
        clocks = found.alignment
        how = "agree" if clocks.agreed else "were aligned by collectives"
        apart = f"ranks end the same collective {format_time(clocks.residual_s)} apart (90th percentile)"
        lines.append(f"clocks {how}, over {format_count(clocks.collectives, 'collective')}; {apart}")
    return "\n".join(lines)


def _format_rank(found: Explanation) -> str:
    lines = []
    if found.late is not None:
        late = found.late
        what = f"rank {late.rank} is late by {format_time(late.seconds)} a step, in {late.phase}"
        lines.append(
            f"{what}; cause: {late.cause}{late.describe_elsewhere()} (over {format_count(late.steps, 'step')})"
        )
    if found.link is not None:
        lines.append(f"slow link: {found.link.text()}")
    if found.recorded is not None:
        lines += [f"flight recorder: {line}" for line in found.recorded.lines()]
    if found.no_verdict_reason is not None:
        lines.insert(0, found.no_verdict_reason)
    elif found.late is None and found.link is None and len(found.ranks.ranks) > 1:
        nobody = "none of the traced ranks is late" if found.ranks.missing else "no rank is late"
        lines.insert(0, break_line(f"{nobody}: {found.uncertain_excess}" if found.uncertain_excess else nobody))
    return "\n".join(lines)


def _parts(found: Explanation) -> str:
    told, shown = found.predicted, found.tables()[PARTS].text("  ")
    if told is None:
        return "\n".join(
            [shown, *([] if found.unpredicted is None else [break_line(f"not predicted: {found.unpredicted}")])]
        )
    where = f"on {format_count(told.prediction.nodes, 'node')} of {told.prediction.topology.name}"
    inside = "includes" if told.holds else "does NOT include"
    ends = f"{format_time(told.low_s)} to {format_time(told.high_s)}, which {inside} the traced step"
    helps = format_helps_most(told.sensitivities, told.prediction.iteration_s, told.prediction.options.accumulate)
    return "\n".join(
        [shown, f"predicted step {where}: {ends}", told.prediction.critical_path.text("predicted "), *helps]
    )


def _buckets(found: Explanation) -> str:
    return f"buckets: {found.buckets}" if found.buckets else ""


def _collectives(found: Explanation) -> str:
    if not found.splits:
        return ""
    several = len(found.ranks.ranks) > 1
    times = found.describe_times(several=several)
    lines = [break_line(f"collectives, ms: {times}"), first_rows(found.tables()[COLLECTIVES], _SHOWN)]
    if several and any(split.bound for split in found.splits):
        lines.append("without a last rank: not all ranks take part; waiting is at least, wire at most as shown")
    if not several:
        lines.append("one rank: wire as fast as in its fastest collective; waiting is at least, wire at most as shown")
    return "\n".join(lines)


def _ranks(found: Explanation) -> str:
    if not found.excess_s:
        return ""
    title = "how much longer each rank computes and loads than the median of the others, ms a step"
    return f"{title}\n{found.tables()[RANKS].first(_SHOWN).text()}"


def _advice(found: Explanation) -> str:
    return "\n".join(break_line(f"- {line}") for line in found.advice)


def tuning_text(tuning: Tuning) -> str:
    """Return a tuner's page as text, its rounds in their order."""
    return "\n\n".join(_tuning_round(number, each) for number, each in enumerate(tuning.rounds, 1))


def _tuning_round(number: int, told: TuningRound) -> str:
    lines = [
        f"round {number}, from step {told.first_step}: {told.reason}",
        f"kept     {told.kept}{_kept_step(told.kept_step_s)}",
        f"before   {told.present}{_kept_step(told.present_step_s)}",
        f"cost     {_cost(told)}",
    ]
    if told.latency_s is not None:
        rate = "" if told.bandwidth is None else f" and {format_bandwidth(told.bandwidth)}"
        probes = f", {format_count(told.probed, 'probing plan')}" if told.probed else ""
        lines.append(f"measured allreduces of {format_time(told.latency_s)}{rate}{probes}")
    other = OtherWork.read(document_of(told))
    lines += [] if other is None else [f"note     {line}" for line in other.notes()]
    if told.plans:
        lines += ["", table_of("tuning", document_of(told.plans)).text()]
    return "\n".join(lines)


def _kept_step(seconds: float | None) -> str:
    return "" if seconds is None else f", {format_time(seconds)} a step"


def _cost(told: TuningRound) -> str:
    share = ""
    if told.present_step_s and told.steps:
        share = f", {percent(told.lost_s / (told.steps * told.present_step_s))} of their time"
    own = f"{ms(told.own_s)} ms of it between steps"
    return f"{format_count(told.steps, 'step')}, {ms(told.lost_s)} ms lost to the search{share}, {own}"
