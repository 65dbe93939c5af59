"""Schemes side by side as text: what a step takes under each on each machine, and which is advised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ddpsim.tables import text_of
from ddpsim.units import format_count

if TYPE_CHECKING:
    from ddpsim.planning.by_scheme import SchemeChoice, SchemeReport


def text(report: SchemeReport, asked: Sequence[str] = ()) -> str:
    """Return the report as a table, of the columns `asked` where there are some, and what is advised."""
    lines = [text_of("plan --schemes", [row.describe() for row in report.rows], asked), ""]
    lines += [line for choice in report.choices for line in _advice(choice)]
    return "\n".join([*lines, "", *_verdict(report)])


def _verdict(report: SchemeReport) -> Iterator[str]:
    """Yield where most samples a second are trained, and which machines that is not said of, and why."""
    from ddpsim.planning.ranking import describe_borrowed, list_unranked

    if (best := report.best) is not None:
        where = f"{best.prediction.topology.name}, {format_count(best.prediction.nodes, 'node')}, {best.scheme}"
        unfit = "" if best.fits is not False else ", which does NOT fit in GPU memory, as nothing here does"
        yield f"highest throughput: {where}{unfit}"
    yield from describe_borrowed(choice.best.prediction for choice in report.choices)
    for why, found in list_unranked(choice.best.prediction for choice in report.choices):
        yield f"not ranked: {', '.join(dict.fromkeys(each.topology.name for each in found))}: {why}"


def _advice(choice: SchemeChoice) -> Iterator[str]:
    from ddpsim.planning.worth import format_gain

    best = choice.best
    where = f"on {best.prediction.topology.name}, {format_count(best.prediction.nodes, 'node')}"
    others = [row for row in choice.rows if row.scheme != best.scheme]
    trial = "" if choice.trial is None else f"; {choice.trial}"
    if not choice.keep_ddp:
        gain = format_gain(best.gain, best.gain_low, best.gain_high, "shorter step than with DDP ")
        yield f"{where}: use {best.scheme}, {gain}{trial}"
    elif trial or not others:
        yield f"{where}: keep DDP{trial}"
    else:
        most = max(others, key=lambda row: row.gain)
        unfit = {False: ", and does NOT fit", None: ", and may not fit" if most.may_not_fit else ""}.get(most.fits, "")
        gain = format_gain(most.gain, most.gain_low, most.gain_high, "of the step saved ")
        yield f"{where}: keep DDP; the best alternative is {most.scheme}, {gain}{unfit}"
