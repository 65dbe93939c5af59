"""Advice as a task: what is kept of it, and the advice again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ddpsim.planning.advice import AccumulationAdvice, Advice, TwoNodeCost, advise
from ddpsim.planning.break_even import BreakEven, What
from ddpsim.planning.comparison_point import ComparisonPoint
from ddpsim.planning.comparison_row import ComparisonRow
from ddpsim.planning.entries import entry_of, read_entry
from ddpsim.planning.worth import Trial
from ddpsim.prediction.prediction import Band
from ddpsim.simulation.job import Keys
from ddpsim.simulation.run import Progress
from ddpsim.workers.journal import JournalEntry
from ddpsim.workers.kept import Task


@dataclass(frozen=True, slots=True)
class KeptAdvice:
    """What is kept of advice: all but its row."""

    break_even: tuple[
        tuple[What, float | None, float | None, float | None, str, tuple[str, Band] | None, Trial | None], ...
    ]
    apart: tuple[int, float, float, Band] | None
    accumulating: tuple[tuple[int, Band], ...]

    @classmethod
    def of(cls, advice: Advice) -> KeptAdvice:
        """Return what is kept of `advice`."""
        apart = advice.apart
        return cls(
            tuple((f.what, f.value, f.low, f.high, f.why, f.advised, f.trial) for f in advice.break_even),
            None if apart is None else (apart.ranks, apart.together_s, apart.apart_s, apart.cost),
            tuple((each.every, each.saving) for each in advice.accumulating),
        )


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
    known = [keys.of(point) for point in points]
    return Task(partial(_entry, efficiency), rows, known, _name_row, restore_advice)


def restore_advice(row: ComparisonRow, entry: JournalEntry) -> Advice:
    """Return the advice on a row of which `entry` was kept.

    Raises:
        ValueError: as `read_entry`.
    """
    kept = read_entry(KeptAdvice, entry)
    return Advice(
        row,
        tuple(BreakEven(row, *found) for found in kept.break_even),
        None if kept.apart is None else TwoNodeCost(row, *kept.apart),
        tuple(AccumulationAdvice(row, every, saving) for every, saving in kept.accumulating),
    )


def _entry(efficiency: float, row: ComparisonRow, progress: Progress | None = None) -> JournalEntry:
    """Return what is kept of the advice on a row; nothing tells how far a search has come, so that nothing is shown."""
    return entry_of(KeptAdvice.of(advise(row, efficiency, row.prediction.calibration)), None, _name_row(row))


def _name_row(row: ComparisonRow) -> str:
    return f"advice on {row.model}, {row.machine}"
