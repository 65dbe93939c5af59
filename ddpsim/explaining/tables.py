"""An explanation as tables: the step's parts beside their prediction, collectives, ranks, what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpsim.tables import Column, ResultTable
from ddpsim.tables.cells import mib, ms, ms_more, percent
from ddpsim.trace.tables import PART_NAMES

if TYPE_CHECKING:
    from ddpsim.explaining.against import OperationTotals, RunComparison, TimeChange
    from ddpsim.explaining.explanation import Explanation
    from ddpsim.explaining.splits import MedianSplit

PARTS, COLLECTIVES, RANKS = "Parts of the step", "Collectives", "Ranks"
CHANGES, MOVED = "What changed", "Collectives, then and now"
"""Titles of tables."""


def part_name(part: str) -> str:
    """Return what a part of a step is called."""
    names = {**PART_NAMES, "input_s": "input, loop"}
    return names.get(part) or f"{part.removesuffix('_s')} (not DDP's)"


def explanation_tables(found: Explanation) -> dict[str, ResultTable]:
    """Return the tables by their titles; of collectives and of several ranks only where there are any."""
    tables = {PARTS: _parts(found)}
    if found.splits:
        # A column of which nothing is known is none.
        tables[COLLECTIVES] = ResultTable.of(_COLLECTIVES, found.splits).known()
    if found.excess_s:
        tables[RANKS] = _ranks(found)
    return tables


def comparison_tables(since: RunComparison) -> dict[str, ResultTable]:
    """Return what changed since an earlier run, in the step and in collectives; a `?` marks what may be chance."""
    step_s = since.step.then_s
    columns: tuple[Column[TimeChange], ...] = (
        Column("part", lambda part: part.name if part is since.step else part_name(part.name), words=True),
        Column("now ms", lambda part: ms(part.now_s)),
        Column("then ms", lambda part: ms(part.then_s)),
        Column("change", lambda part: f"{ms_more(part.change_s)}{'' if part.sure or not part.change_s else ' ?'}"),
        Column("of the step then", lambda part: percent(part.change_s / step_s, True)),
    )
    shown = [part for part in (*since.parts, since.step) if part.now_s or part.then_s]
    tables = {CHANGES: ResultTable.of(columns, shown)}
    if since.collectives:
        tables[MOVED] = ResultTable.of(_MOVED, since.collectives)
    return tables


def _parts(found: Explanation) -> ResultTable:
    step_s, told = found.traced.step_s, found.foretold
    rows: list[tuple[str, float, float | None]] = [(part_name(part), s, None) for part, s in found.traced.parts.items()]
    if told is not None:
        rows = [(part_name(term.name), term.traced_s, term.predicted_s) for term in told.terms]
        rows.append(("step", told.traced_s, told.step_s))
    columns: tuple[Column[tuple[str, float, float | None]], ...] = (
        Column("part", lambda row: row[0], words=True),
        Column("traced ms", lambda row: ms(row[1])),
        Column("share", lambda row: percent(row[1] / step_s)),
        Column("predicted ms", lambda row: ms(row[2])),
        Column("of the step", lambda row: None if row[2] is None else percent((row[2] - row[1]) / step_s, True)),
    )
    return ResultTable.of(columns, rows).known()


_COLLECTIVES: tuple[Column[MedianSplit], ...] = (
    Column("collective", lambda split: split.index),
    Column("", lambda split: split.operation, words=True),
    Column("gradients", lambda split: split.parameters or None),
    Column("MiB", lambda split: mib(split.size_bytes)),
    Column("ready ms", lambda split: ms(split.ready_s)),
    Column("started", lambda split: ms(split.started_s)),
    Column("finished", lambda split: ms(split.finished_s)),
    Column("waiting", lambda split: ms(split.wait_s)),
    Column("wire", lambda split: ms(split.wire_s)),
    Column("last rank", lambda split: split.last_rank),
)

_MOVED: tuple[Column[tuple[str, OperationTotals, OperationTotals]], ...] = (
    Column("collectives", lambda row: row[0], words=True),
    Column("then", lambda row: row[1].count),
    Column("now", lambda row: row[2].count),
    Column("waiting then ms", lambda row: ms(row[1].wait_s)),
    Column("now", lambda row: ms(row[2].wait_s)),
    Column("wire then ms", lambda row: ms(row[1].wire_s)),
    Column("now", lambda row: ms(row[2].wire_s)),
)


def _ranks(found: Explanation) -> ResultTable:
    def phase(name: str) -> Column[int]:
        return Column(name, lambda rank: ms_more(found.excess_s[rank][name]))

    columns: list[Column[int]] = [
        Column("rank", lambda rank: rank, words=True),
        *(phase(name) for name in next(iter(found.excess_s.values()))),
        Column("all", lambda rank: ms_more(sum(found.excess_s[rank].values()))),
    ]
    return ResultTable.of(columns, list(found.excess_s))
