"""A search as text: the best few, what is as good within its band, the line to paste, and why the rest are left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpsim.cli.plan_text import format_step, memory_cell
from ddpsim.tables import Column, ResultTable, break_line, column
from ddpsim.units import GIB, format_count, format_time

if TYPE_CHECKING:
    from ddpsim.planning.search_report import SearchReport, SearchRow

_PLAIN = "plain DDP"
"""What DDP at torch's defaults is called, with the workload's own batch and all layers on every rank."""


def text(report: SearchReport) -> str:
    """Return the report as a table and what is to be said beside it."""
    every, best = (*report.rows, *report.may_not_fit), report.best
    chosen = every[0].plan.chosen
    columns = [
        column("scheme", words=True),
        column("tensor_parallel", "tensor"),
        *([column("stages", words=True)] if any(row.candidate.pipeline for row in every) else []),
        column("data_parallel", "data"),
        column("micro_batch_size", "micro batch"),
        column("accumulate", "a step"),
        column("buckets", words=True),
        Column("step ms", format_step),
        column("samples_per_s"),
        column("memory", "GiB"),
        *([] if isinstance(report.plain, str) else [column("gain_over_plain_ddp", "gain", bands=False)]),
        column("binds", "bound", words=True),
    ]
    records = [_record(row, report) for row in report.rows]
    if not isinstance(report.plain, str):
        records.append({**_record(report.plain, report), "scheme": _PLAIN, "gain_over_plain_ddp": None})
    beside = [_record(row, report) for row in report.may_not_fit]
    where = f"{chosen.topology.name}, {format_count(chosen.nodes, 'node')}"
    lines = [
        f"{report.name} on {where}: {format_count(report.global_batch_size, 'sample')} a step",
        "",
        ResultTable.of(columns, records).text(),
        "",
        *(["may not fit:", ResultTable.of(columns, beside).text(), ""] if beside else []),
        *_plain_ddp(report),
        *(["best: nothing surely fits"] if best is None else [f"best: {best.candidate}", f"    {best.plan.advice}"]),
    ]
    if report.trial is not None:
        lines += [break_line(f"{report.trial}:"), f"    {report.trial.torch}"]
    for row in report.may_not_fit:
        if best is None:
            break
        less = f"{100 * (1 - row.step_s[0] / best.step_s[0]):.1f} % less than the best"
        lines.append(break_line(f"faster, but may not fit: {row.candidate}, {less}"))
    if report.within:
        lines += ["within its band too:", *(f"    {row.candidate}" for row in report.within)]
    return "\n".join([*lines, *_ruled_out(report)])


def _ruled_out(report: SearchReport) -> Iterator[str]:
    """Yield how many candidates were looked at, and why the others are left."""
    left = sum(each.count for each in report.ruled_out)
    memory = (*report.rows, *report.may_not_fit)[0].plan.chosen.memory
    room = None if memory is None or memory.capacity_bytes is None else memory.capacity_bytes / GIB
    fitting = "" if room is None else f" for {room:.1f} GiB a GPU"
    candidates = f"{format_count(report.candidates, 'candidate')}{fitting}, {report.simulated} of them simulated"
    yield f"{candidates}; {left} left out:"
    for each in report.ruled_out:
        why = each.reason if each.count == 1 else each.reason.replace("does not", "do not")
        yield f"    {each.count} {why}" + (f": {each.example}" if each.example else "")


def _plain_ddp(report: SearchReport) -> Iterator[str]:
    """Yield what the best gains over DDP at torch's defaults, or why that is not told."""
    from ddpsim.planning.worth import format_gain

    if isinstance(report.plain, str):
        yield break_line(f"{_PLAIN} is no way to train on it: {report.plain}")
        return
    plain, best = report.plain, report.best
    gain = None if best is None else report.gain_band_of(best)
    memory = plain.plan.chosen.memory
    fits = ", which does not fit" if memory is not None and memory.fits is False else ""
    than = f"{_PLAIN}, {format_time(plain.step_s[0])} a step{fits}"
    if gain is not None and gain[0] > 0:
        yield f"the best takes {format_gain(*gain, 'less ')} than {than}"
    elif gain is not None:
        yield f"nothing that surely fits surely takes less than {than}"


def _record(row: SearchRow, report: SearchReport) -> dict[str, object]:
    found, gain = row.describe(), report.gain_of(row)
    memory = memory_cell(row.plan.chosen.memory)
    return {**found, "binds": found["binds"] or "", "memory": memory, "gain_over_plain_ddp": gain}
