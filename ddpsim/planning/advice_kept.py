"""Advice as a task: what is kept of it, and the advice again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ddpsim.planning.advice import AccumulationAdvice, Advice, TwoNodeCost, advise
from ddpsim.planning.band import Band
from ddpsim.planning.break_even import BreakEven, What
from ddpsim.planning.comparison_point import ComparisonPoint
from ddpsim.planning.comparison_row import ComparisonRow
from ddpsim.planning.entries import check_entry, entry_of
from ddpsim.planning.keys import Keys
from ddpsim.simulation.run import Progress
from ddpsim.workers.journal import JournalEntry
from ddpsim.workers.kept import Task


@dataclass(frozen=True, slots=True)
class TwoNodeCostEntry:
    """What is kept of `TwoNodeCost`: all but its row."""

    ranks: int
    together_s: float
    apart_s: float
    cost: Band


@dataclass(frozen=True, slots=True)
class KeptAdvice:
    """What is kept of advice, for who checks one that was read."""

    break_even: list[tuple[What, float | None, float | None, float | None, str]]
    apart: TwoNodeCostEntry | None
    accumulating: list[tuple[int, Band]]


def advice_task(
    rows: Sequence[ComparisonRow], points: Sequence[ComparisonPoint], efficiency: float
) -> Task[ComparisonRow]:
    """Return the advice on rows as a task.

    Args:
        rows: each stands for its machine.
        points: that they are of.
        efficiency: as that of `advise`.
    """
    keys = Keys("advice", efficiency)
    return Task(partial(_entry, efficiency), rows, [keys.of(*point.parts()) for point in points], _named, _restore_part)


def _restore_part(row: ComparisonRow, entry: JournalEntry) -> Advice:
    check_entry(KeptAdvice, entry)
    return restore_advice(row, entry)


def restore_advice(row: ComparisonRow, entry: JournalEntry) -> Advice:
    """Return the advice on a row of which `entry` was kept."""
    document: dict[str, Any] = json.loads(entry.document)
    apart = document["apart"]
    return Advice(
        row,
        break_even=tuple(BreakEven(row, *found) for found in document["break_even"]),
        apart=None if apart is None else TwoNodeCost(row, **{**apart, "cost": tuple(apart["cost"])}),
        accumulating=tuple(AccumulationAdvice(row, every, tuple(saving)) for every, saving in document["accumulating"]),
    )


def _entry(efficiency: float, row: ComparisonRow, progress: Progress | None = None) -> JournalEntry:
    """Return what is kept of the advice on a row; nothing tells how far a search has come, so that nothing is shown."""
    advice = advise(row, efficiency, row.prediction.calibration)
    apart = advice.apart
    document = {
        "break_even": [[found.what, found.value, found.low, found.high, found.why] for found in advice.break_even],
        "apart": None if apart is None else {name: getattr(apart, name) for name in _APART},
        "accumulating": [[each.every, each.saving] for each in advice.accumulating],
    }
    return entry_of(document, None, _named(row))


def _named(row: ComparisonRow) -> str:
    return f"advice on {row.model}, {row.machine}"


_APART = ("ranks", "together_s", "apart_s", "cost")
"""What is kept of `TwoNodeCost`: all but its row."""
