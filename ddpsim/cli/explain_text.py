"""What `ddpsim explain` prints: the answer first, then the step, its prediction, collectives and ranks."""

from __future__ import annotations

from ddpsim.cli.output import ms, percent, table
from ddpsim.explaining.against import RunComparison
from ddpsim.explaining.explanation import Explanation
from ddpsim.prediction.path import helps_most
from ddpsim.units import MIB, counted, format_time

NAMES = {
    "forward_s": "forward",
    "backward_compute_s": "backward",
    "exposed_comm_s": "exposed communication",
    "buffer_broadcast_s": "buffer broadcast",
    "ddp_overhead_s": "DDP overhead",
    "optimizer_s": "optimizer",
    "input_s": "input, loop",
}
"""What the parts of a step are called; those of collectives that are not DDP's by `part_name`."""
_SHOWN = 24
"""Rows of collectives in the text, `--json` has all; chosen by hand, for one screen."""


def part_name(part: str) -> str:
    """Return what a part of a step is called."""
    return NAMES.get(part) or f"{part.removesuffix('_s')} (not DDP's)"


def text(found: Explanation) -> str:
    """Return the explanation as text."""
    answer = [_step(found), _who(found), _advice(found)]
    blocks = [*answer, _parts(found), _buckets(found), _collectives(found), _ranks(found)]
    return "\n\n".join(block for block in blocks if block)


def changes(since: RunComparison) -> str:
    """Return what changed since an earlier run as text; a change that the steps do not show surely has a `?`."""
    rows = [
        (
            f"  {part.name if part is since.step else part_name(part.name)}", ms(part.now_s), ms(part.then_s),
            f"{part.change_s * 1e3:+.2f}{'' if part.sure or not part.change_s else ' ?'}",
            percent(part.change_s / since.step.then_s, True),
        )
        for part in (*since.parts, since.step)
        if part.now_s or part.then_s
    ]  # fmt: skip
    lines = [since.verdict(), "", table(("  part", "now ms", "then ms", "change", "of the step then"), rows)]
    moved = [
        (name, then.count, now.count, ms(then.wait_s), ms(now.wait_s), ms(then.wire_s), ms(now.wire_s))
        for name, then, now in since.collectives
    ]
    if moved:
        header = ("collectives", "then", "now", "waiting then ms", "now", "wire then ms", "now")
        lines += ["", table(header, moved)]
    if since.changed:
        lines += ["", *(f"- {line}" for line in since.changed)]
    return "\n".join(lines)


def _step(found: Explanation) -> str:
    traced, ranks = found.traced, found.ranks
    lines = [
        f"traced step  {format_time(traced.step_s)} ({format_time(traced.low_s)} to {format_time(traced.high_s)}), "
        f"median of {counted(traced.steps, 'step')}; {found.bound}-bound"
    ]
    if found.profiler_s is not None and found.untraced_s is not None:
        lines.append(f"profiler     {format_time(found.profiler_s)} of it: untraced {format_time(found.untraced_s)}")
    have = f"{len(ranks.ranks)} of {counted(ranks.world_size, 'rank')} traced"
    missing = ", ".join(str(rank) for rank in ranks.missing[:16])
    lines.append(f"{have}{f', missing: {missing}' if missing else ''}")
    if len(ranks.ranks) > 1:
        clocks = found.alignment
        how = "agree" if clocks.agreed else "were aligned by collectives"
        apart = f"ends of the same collective are {format_time(clocks.residual_s)} apart (90th percentile)"
        lines.append(f"clocks {how}, over {counted(clocks.collectives, 'collective')}; {apart}")
    return "\n".join(lines)


def _who(found: Explanation) -> str:
    lines = []
    if found.late is not None:
        late = found.late
        what = f"rank {late.rank} is late by {format_time(late.seconds)} a step, in {late.phase}"
        lines.append(f"{what}; cause: {late.cause}{late.elsewhere()} (over {counted(late.steps, 'step')})")
    if found.link is not None:
        lines.append(f"slow link: {found.link.text()}")
    if found.recorded is not None:
        lines += [f"flight recorder: {line}" for line in found.recorded.lines()]
    if found.late_untold is not None:
        lines.insert(0, found.late_untold)
    elif found.late is None and found.link is None and len(found.ranks.ranks) > 1:
        lines.insert(0, "none of the traced ranks is late" if found.ranks.missing else "no rank is late")
    return "\n".join(lines)


def _parts(found: Explanation) -> str:
    step, told = found.traced, found.foretold
    if told is None:
        alone = [(f"  {part_name(part)}", ms(s), percent(s / step.step_s)) for part, s in step.parts.items()]
        why = [] if found.unpredicted is None else [f"not predicted: {found.unpredicted}"]
        return "\n".join([table(("  part", "traced ms", "share"), alone), *why])
    each = [(f"  {part_name(t.name)}", t.traced_s, t.predicted_s) for t in told.terms]
    each.append(("  step", told.traced_s, told.step_s))
    rows = [
        (
            name,
            ms(traced),
            percent(traced / step.step_s),
            ms(predicted),
            percent((predicted - traced) / step.step_s, True),
        )
        for name, traced, predicted in each
    ]
    where = f"on {counted(told.prediction.nodes, 'node')} of {told.prediction.topology.name}"
    inside = "holds" if told.holds else "does NOT hold"
    band = f"predicted {where}: {format_time(told.low_s)} to {format_time(told.high_s)}, which {inside} the traced step"
    helps = helps_most(told.sensitivities, told.prediction.iteration_s)
    waits = (f"predicted: {told.prediction.critical_path.text()}", *helps)
    return "\n".join([table(("  part", "traced ms", "share", "predicted ms", "of the step"), rows), band, *waits])


def _buckets(found: Explanation) -> str:
    return f"buckets: {found.buckets}" if found.buckets else ""


def _collectives(found: Explanation) -> str:
    if not found.splits:
        return ""
    several = len(found.ranks.ranks) > 1
    rows = [
        (
            s.index, s.operation, s.parameters or None, None if s.size_bytes is None else f"{s.size_bytes / MIB:.2f}",
            ms(s.ready_s), ms(s.started_s), ms(s.finished_s), ms(s.wait_s), ms(s.wire_s), s.last_rank,
        )
        for s in found.splits[:_SHOWN]
    ]  # fmt: skip
    header = ("collective", "", "gradients", "MiB", "ready ms", "started", "finished", "waiting", "wire", "last rank")
    # A column of which nothing is known is none.
    kept = [n for n in range(len(header)) if any(row[n] is not None for row in rows)]
    lines = [table([header[n] for n in kept], [[row[n] for n in kept] for row in rows], left=(1,))]
    if len(found.splits) > _SHOWN:
        lines.append(f"... {len(found.splits) - _SHOWN} more; --json has all")
    if several and any(split.bound for split in found.splits):
        lines.append("no last rank: not all ranks take part; as of one rank, waiting is the least, wire the most")
    if not several:
        lines.append("one rank: the wire as fast as in its fastest collective; waiting is the least, wire the most")
    return "\n".join(lines)


def _ranks(found: Explanation) -> str:
    if not found.excess_s:
        return ""
    phases = list(next(iter(found.excess_s.values())))
    rows = [
        (rank, *(f"{seconds * 1e3:+.2f}" for seconds in excess.values()), f"{sum(excess.values()) * 1e3:+.2f}")
        for rank, excess in list(found.excess_s.items())[:_SHOWN]
    ]
    title = "own time of each rank beyond the others' median, ms"
    return "\n".join([title, table(("rank", *phases, "all"), rows)])


def _advice(found: Explanation) -> str:
    return "\n".join(f"- {line}" for line in found.advice)
