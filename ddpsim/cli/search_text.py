"""A search as text: the best few, what is as good within its band, the line to paste, and why the rest are left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddpsim.tables import break_line, list_shown, text_of
from ddpsim.units import GIB, format_count, format_time

if TYPE_CHECKING:
    from ddpsim.planning.search_report import SearchReport

_PLAIN = "plain DDP"
"""What DDP at torch's defaults is called, with the workload's own batch and all layers on every rank."""


def text(report: SearchReport, asked: Sequence[str] = ()) -> str:
    """Return the report as a table, of the columns `asked` where there are some, and what is to be said beside it."""
    best, chosen = report.best, (*report.rows, *report.may_not_fit)[0].plan.chosen
    records, beside = report.describe(*report.rows), report.describe(*report.may_not_fit)
    if not isinstance(report.plain, str):
        (plain,) = report.describe(report.plain)
        records.append({**plain, "scheme": _PLAIN, "gain_over_plain_ddp": None})
    names = asked or list_shown("plan --search", [*records, *beside])
    where = f"{chosen.topology.name}, {format_count(chosen.nodes, 'node')}"
    lines = [
        f"{report.name} on {where}: {format_count(report.global_batch_size, 'sample')} a step",
        "",
        text_of("plan --search", records, names),
        "",
        *(["may not fit:", text_of("plan --search", beside, names), ""] if beside else []),
        *_plain_ddp(report),
        *(["best: none is sure to fit"] if best is None else [f"best: {best.candidate}", f"    {best.plan.advice}"]),
    ]
    if report.trial is not None:
        lines += [break_line(f"{report.trial}:"), f"    {report.trial.torch}"]
    for row in report.may_not_fit:
        if best is None:
            break
        less = f"{100 * (1 - row.step_s[0] / best.step_s[0]):.1f} % shorter step than the best"
        lines.append(break_line(f"faster, but may not fit: {row.candidate}, {less}"))
    if report.within:
        lines += ["as good within its uncertainty:", *(f"    {row.candidate}" for row in report.within)]
    return "\n".join([*lines, *_ruled_out(report)])


def _ruled_out(report: SearchReport) -> Iterator[str]:
    """Yield how many candidates were looked at, and why the others are left."""
    left = sum(each.count for each in report.ruled_out)
    memory = (*report.rows, *report.may_not_fit)[0].plan.chosen.memory
    room = None if memory is None or memory.capacity_bytes is None else memory.capacity_bytes / GIB
    fitting = "" if room is None else f" for GPUs of {room:.1f} GiB"
    candidates = f"{format_count(report.candidates, 'candidate')}{fitting}, {report.simulated} of them simulated"
    yield f"{candidates}; {left} ruled out:"
    for each in report.ruled_out:
        why = each.reason if each.count == 1 else each.reason.replace("does not", "do not")
        yield f"    {each.count} {why}" + (f": {each.example}" if each.example else "")


def _plain_ddp(report: SearchReport) -> Iterator[str]:
    """Yield what the best gains over DDP at torch's defaults, or why that is not told."""
    from ddpsim.planning.worth import format_gain

    if isinstance(report.plain, str):
        yield break_line(f"{_PLAIN} cannot train it there: {report.plain}")
        return
    plain, best = report.plain, report.best
    gain = None if best is None else report.gain_band_of(best)
    memory = plain.plan.chosen.memory
    fits = ", which does not fit" if memory is not None and memory.fits is False else ""
    than = f"{_PLAIN}, {format_time(plain.step_s[0])} a step{fits}"
    if gain is not None and gain[0] > 0:
        yield f"the best has a {format_gain(*gain, 'shorter step ')} than {than}"
    elif gain is not None:
        yield f"no candidate that is sure to fit is sure to be faster than {than}"
