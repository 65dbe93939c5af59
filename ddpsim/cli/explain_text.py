"""The text of `ddpsim explain`: the answer, then the step, its prediction, collectives, ranks; or a tuner's rounds."""

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


def text(explanation: Explanation) -> str:
    """Return the explanation as text."""
    answer = [_step(explanation), _format_rank(explanation), _advice(explanation)]
    blocks = [*answer, _parts(explanation), _buckets(explanation), _collectives(explanation), _ranks(explanation)]
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


def _step(explanation: Explanation) -> str:
    traced, ranks = explanation.traced, explanation.ranks
    band = f"{format_time(traced.iteration_low_s)} to {format_time(traced.iteration_high_s)}"
    usual = f"{format_time(traced.iteration_s)} ({band}), median of {format_count(traced.iterations, 'step')}"
    lines = [f"traced step  {usual}; bottleneck: {explanation.bound_text}"]
    if explanation.profiler_s is not None and explanation.untraced_s is not None:
        without = format_time(explanation.untraced_s)
        lines.append(f"profiler     {format_time(explanation.profiler_s)} of it; without it {without}")
    if (added := ranks.ranks[0].accumulation) is not None:
        lines.append(describe_accumulation(added.accumulate, added.reducing))
    have = f"{len(ranks.ranks)} of {format_count(ranks.world_size, 'rank')} traced"
    missing = ", ".join(str(rank) for rank in ranks.missing[:16])
    lines.append(f"{have}{f', missing: {missing}' if missing else ''}")
    if len(ranks.ranks) > 1:
        clocks = explanation.alignment
        how = "agree" if clocks.agreed else "were aligned by collectives"
        apart = f"ranks end the same collective {format_time(clocks.residual_s)} apart (90th percentile)"
        lines.append(f"clocks {how}, over {format_count(clocks.collectives, 'collective')}; {apart}")
    return "\n".join(lines)


def _format_rank(explanation: Explanation) -> str:
    lines = []
    if explanation.late is not None:
        late = explanation.late
        what = f"rank {late.rank} is late by {format_time(late.seconds)} a step, in {late.phase}"
        lines.append(
            f"{what}; cause: {late.cause}{late.describe_elsewhere()} (over {format_count(late.steps, 'step')})"
        )
    if explanation.link is not None:
        lines.append(f"slow link: {explanation.link.text()}")
    if explanation.recorded is not None:
        lines += [f"flight recorder: {line}" for line in explanation.recorded.lines()]
    if explanation.no_verdict_reason is not None:
        lines.insert(0, explanation.no_verdict_reason)
    elif explanation.late is None and explanation.link is None and len(explanation.ranks.ranks) > 1:
        nobody = "none of the traced ranks is late" if explanation.ranks.missing else "no rank is late"
        lines.insert(
            0, break_line(f"{nobody}: {explanation.uncertain_excess}" if explanation.uncertain_excess else nobody)
        )
    return "\n".join(lines)


def _parts(explanation: Explanation) -> str:
    predicted, shown = explanation.predicted, explanation.tables()[PARTS].text("  ")
    if predicted is None:
        return "\n".join(
            [
                shown,
                *([] if explanation.unpredicted is None else [break_line(f"not predicted: {explanation.unpredicted}")]),
            ]
        )
    where = f"on {format_count(predicted.prediction.nodes, 'node')} of {predicted.prediction.topology.name}"
    inside = "includes" if predicted.holds else "does NOT include"
    ends = f"{format_time(predicted.low_s)} to {format_time(predicted.high_s)}, which {inside} the traced step"
    helps = format_helps_most(
        predicted.sensitivities, predicted.prediction.iteration_s, predicted.prediction.options.accumulate
    )
    return "\n".join(
        [shown, f"predicted step {where}: {ends}", predicted.prediction.critical_path.text("predicted "), *helps]
    )


def _buckets(explanation: Explanation) -> str:
    return f"buckets: {explanation.buckets}" if explanation.buckets else ""


def _collectives(explanation: Explanation) -> str:
    if not explanation.splits:
        return ""
    several = len(explanation.ranks.ranks) > 1
    times = explanation.describe_times(several=several)
    lines = [break_line(f"collectives, ms: {times}"), first_rows(explanation.tables()[COLLECTIVES], _SHOWN)]
    if several and any(split.bound for split in explanation.splits):
        lines.append("without a last rank: not all ranks take part; waiting is at least, wire at most as shown")
    if not several:
        lines.append("one rank: wire as fast as in its fastest collective; waiting is at least, wire at most as shown")
    return "\n".join(lines)


def _ranks(explanation: Explanation) -> str:
    if not explanation.excess_s:
        return ""
    title = "how much longer each rank computes and loads than the median of the others, ms a step"
    return f"{title}\n{explanation.tables()[RANKS].first(_SHOWN).text()}"


def _advice(explanation: Explanation) -> str:
    return "\n".join(break_line(f"- {line}") for line in explanation.advice)


def tuning_text(tuning: Tuning) -> str:
    """Return a tuner's page as text, its rounds in their order."""
    return "\n\n".join(_tuning_round(number, each) for number, each in enumerate(tuning.rounds, 1))


def _tuning_round(number: int, tuned: TuningRound) -> str:
    lines = [
        f"round {number}, from step {tuned.first_step}: {tuned.reason}",
        f"kept     {tuned.kept}{_kept_step(tuned.kept_step_s)}",
        f"before   {tuned.present}{_kept_step(tuned.present_step_s)}",
        f"cost     {_cost(tuned)}",
    ]
    if tuned.latency_s is not None:
        rate = "" if tuned.bandwidth is None else f" and {format_bandwidth(tuned.bandwidth)}"
        probes = f", {format_count(tuned.probed, 'probing plan')}" if tuned.probed else ""
        lines.append(f"measured allreduces of {format_time(tuned.latency_s)}{rate}{probes}")
    other = OtherWork.read(document_of(tuned))
    lines += [] if other is None else [f"note     {line}" for line in other.notes()]
    if tuned.plans:
        lines += ["", table_of("tuning", document_of(tuned.plans)).text()]
    return "\n".join(lines)


def _kept_step(seconds: float | None) -> str:
    return "" if seconds is None else f", {format_time(seconds)} a step"


def _cost(tuned: TuningRound) -> str:
    share = ""
    if tuned.present_step_s and tuned.steps:
        share = f", {percent(tuned.lost_s / (tuned.steps * tuned.present_step_s))} of their time"
    own = f"{ms(tuned.own_s)} ms of it between steps"
    return f"{format_count(tuned.steps, 'step')}, {ms(tuned.lost_s)} ms lost to the search{share}, {own}"
