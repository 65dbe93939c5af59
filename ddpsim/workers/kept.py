"""Points that are kept as they are done: those of a journal are not computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ddpsim.stopping import Stopped
from ddpsim.workers.crew import Crew
from ddpsim.workers.journal import Entry, Journal
from ddpsim.workers.points import Points

Item = TypeVar("Item")

GRACE_S = 2.0
"""Seconds for which a command that is stopped waits for the points under way, so that short ones are not lost."""


def compute(
    function: Callable[[Item], Entry],
    items: Sequence[Item],
    found: dict[int, Entry],
    *,
    keys: Sequence[str],
    crew: Crew | None = None,
    journal: Journal | None = None,
    name: Callable[[Item], str] = str,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Put the entry of every item into `found`, by position, each as soon as it is there.

    Args:
        function: as that of `Points`; likewise `name`.
        items: in order.
        found: what is done, however this ends.
        keys: what each item is known by in the journal: two items of one key have the same entry.
        crew: who computes; None is this process.
        journal: has what was done before, and is told of each entry.
        progress: called with entries found and items in all.

    Raises:
        Stopped: by a signal; what is done within `GRACE_S` is found too.
        WorkersError: as `Points`; and any error of an item.
    """
    known = {} if journal is None else journal.entries
    found |= {position: known[key] for position, key in enumerate(keys) if key in known}
    left = [position for position in range(len(items)) if position not in found]
    points = Points(function, [items[position] for position in left], crew, name)

    def keep(number: int, entry: Entry) -> None:
        position = left[number]
        found[position] = entry
        write(position)
        show(len(found), len(items))

    def write(position: int) -> None:
        if journal is not None and keys[position] not in journal.entries:
            journal.add(keys[position], found[position])

    show = progress or (lambda done, total: None)
    show(len(found), len(items))
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
