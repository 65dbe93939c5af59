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


def text(run: Explanation) -> str:
    """Return the explanation as text."""
    answer = [_step(run), _format_rank(run), _advice(run)]
    blocks = [*answer, _parts(run), _buckets(run), _collectives(run), _ranks(run)]
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


def _step(run: Explanation) -> str:
    traced, ranks = run.traced, run.ranks
    band = f"{format_time(traced.iteration_low_s)} to {format_time(traced.iteration_high_s)}"
    usual = f"{format_time(traced.iteration_s)} ({band}), median of {format_count(traced.iterations, 'step')}"
    lines = [f"traced step  {usual}; bottleneck: {run.bound_text}"]
    if run.profiler_s is not None and run.untraced_s is not None:
        without = format_time(run.untraced_s)
        lines.append(f"profiler     {format_time(run.profiler_s)} of it; without it {without}")
    if (added := ranks.ranks[0].accumulation) is not None:
        lines.append(describe_accumulation(added.accumulate, added.reducing))
    have = f"{len(ranks.ranks)} of {format_count(ranks.world_size, 'rank')} traced"
    missing = ", ".join(str(rank) for rank in ranks.missing[:16])
    lines.append(f"{have}{f', missing: {missing}' if missing else ''}")
    if len(ranks.ranks) > 1:
        clocks = run.alignment
        how = "agree" if clocks.agreed else "were aligned by collectives"
        apart = f"ranks end the same collective {format_time(clocks.residual_s)} apart (90th percentile)"
        lines.append(f"clocks {how}, over {format_count(clocks.collectives, 'collective')}; {apart}")
    return "\n".join(lines)


def _format_rank(run: Explanation) -> str:
    lines = []
    if run.late is not None:
        late = run.late
        what = f"rank {late.rank} is late by {format_time(late.seconds)} a step, in {late.phase}"
        lines.append(
            f"{what}; cause: {late.cause}{late.describe_elsewhere()} (over {format_count(late.steps, 'step')})"
        )
    if run.link is not None:
        lines.append(f"slow link: {run.link.text()}")
    if run.recorded is not None:
        lines += [f"flight recorder: {line}" for line in run.recorded.lines()]
    if run.no_verdict_reason is not None:
        lines.insert(0, run.no_verdict_reason)
    elif run.late is None and run.link is None and len(run.ranks.ranks) > 1:
        nobody = "none of the traced ranks is late" if run.ranks.missing else "no rank is late"
        lines.insert(0, break_line(f"{nobody}: {run.uncertain_excess}" if run.uncertain_excess else nobody))
    return "\n".join(lines)


def _parts(run: Explanation) -> str:
    predicted, shown = run.predicted, run.tables()[PARTS].text("  ")
    if predicted is None:
        return "\n".join(
            [shown, *([] if run.unpredicted is None else [break_line(f"not predicted: {run.unpredicted}")])]
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


def _buckets(run: Explanation) -> str:
    return f"buckets: {run.buckets}" if run.buckets else ""


def _collectives(run: Explanation) -> str:
    if not run.splits:
        return ""
    several = len(run.ranks.ranks) > 1
    times = run.describe_times(several=several)
    lines = [break_line(f"collectives, ms: {times}"), first_rows(run.tables()[COLLECTIVES], _SHOWN)]
    if several and any(split.bound for split in run.splits):
        lines.append("without a last rank: not all ranks take part; waiting is at least, wire at most as shown")
    if not several:
        lines.append("one rank: wire as fast as in its fastest collective; waiting is at least, wire at most as shown")
    return "\n".join(lines)


def _ranks(run: Explanation) -> str:
    if not run.excess_s:
        return ""
    title = "how much longer each rank computes and loads than the median of the others, ms a step"
    return f"{title}\n{run.tables()[RANKS].first(_SHOWN).text()}"


def _advice(run: Explanation) -> str:
    return "\n".join(break_line(f"- {line}") for line in run.advice)


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
