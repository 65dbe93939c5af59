"""Points that are kept as they are done: those of a journal are not computed again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from ddpsim.errors import InputError
from ddpsim.stopping import Stopped
from ddpsim.workers.crew import WorkerPool
from ddpsim.workers.journal import Journal, JournalEntry
from ddpsim.workers.points import Points

Item = TypeVar("Item")
Progress = Callable[[int, int], None]

GRACE_S = 2.0
"""Seconds for which a command that is stopped waits for the points under way, so that short ones are not lost."""


@dataclass(frozen=True, slots=True)
class Task(Generic[Item]):
    """Points to be computed, an entry each.

    Attributes:
        function: as that of `Points`; where this process computes it is given `progress` too, to call now and then.
        items: in order.
        keys: what each item is known by in a journal: two items of one key have the same entry.
        name: as that of `Points`.
        recall: makes of an item's entry what it was kept for; raises where it is none, whatever its sum says.
    """

    function: Callable[..., JournalEntry]
    items: Sequence[Item]
    keys: Sequence[str]
    name: Callable[[Item], str] = str
    recall: Callable[[Item, JournalEntry], object] | None = None


def compute(
    task: Task[Item],
    *,
    crew: WorkerPool | None = None,
    journal: Journal | None = None,
    found: dict[int, JournalEntry] | None = None,
    progress: Progress | None = None,
) -> list[JournalEntry]:
    """Return the entry of every item.

    Args:
        task: what is to be computed.
        crew: who computes; None is this process.
        journal: has what was done before, and is told of each entry.
        found: is given each entry by position, as soon as it is there: what is done, however this ends.
        progress: called with entries found and items in all.

    Raises:
        Stopped: by a signal; what is done within `GRACE_S` is found too.
        WorkersError: as `Points`; and any error of an item.
    """
    found = {} if found is None else found
    forget_wrong(task, journal)
    keys, known = task.keys, {} if journal is None else journal.entries
    found |= {position: known[key] for position, key in enumerate(keys) if key in known}
    left = [position for position in range(len(keys)) if position not in found]
    show = progress or show_nothing
    function = task.function
    if crew is None:
        function = partial(function, progress=lambda *_: show(len(found), len(keys)))
    points = Points(function, [task.items[position] for position in left], crew, task.name)

    def keep(number: int, entry: JournalEntry) -> None:
        position = left[number]
        found[position] = entry
        write(position)
        show(len(found), len(keys))

    def write(position: int) -> None:
        if journal is not None and keys[position] not in journal.entries:
            journal.add(keys[position], found[position])

    show(len(found), len(keys))
    try:
        for number, entry in points:
            keep(number, entry)
    except Stopped:
        for number, entry in points.finish(GRACE_S):
            keep(number, entry)
        # A signal may have come between the two places where a point is kept.
        for position in found:
            write(position)
        raise
    return [found[position] for position in range(len(keys))]


_WRONG = (InputError, ValueError, KeyError, TypeError, IndexError, AttributeError, ArithmeticError, RecursionError)
"""What an entry that was not written by this program comes to where it is taken for one."""


def forget_wrong(task: Task[Item], journal: Journal | None) -> None:
    """Drop the entries of the task's items that hold something else than was kept of them: they are computed anew."""
    if journal is None or not journal.entries:
        return
    for item, key in zip(task.items, task.keys, strict=True):
        entry = journal.entries.get(key)
        if entry is not None and not _holds(task, item, entry):
            del journal.entries[key]


def _holds(task: Task[Item], item: Item, entry: JournalEntry) -> bool:
    try:
        if not all(isinstance(note, str) for note in entry.notes):
            return False
        json.loads(entry.document) if task.recall is None else task.recall(item, entry)
    except _WRONG:
        return False
    return True


def show_nothing(done: int, total: int) -> None:
    """Show nothing."""
