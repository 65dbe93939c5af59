"""Commands that can be stopped and resumed: their rows go to a journal as they are computed.

`make_resumable` opens the pool and the journal around a command; the command calls `ResumableCommand.compute` for its
rows. Where it ends early, by a signal or an error, the rows done so far are written to the file of -o, and the same
command reads the rest from the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from ddpsim.cli.destination import STANDARD_OUTPUT, check_apart, deliver
from ddpsim.cli.output import note, note_once
from ddpsim.cli.progress import Progress
from ddpsim.common.errors import InputError
from ddpsim.common.stopping import Stopped, stop_on_signals

if TYPE_CHECKING:
    from ddpsim.common.workers.crew import WorkerPool
    from ddpsim.common.workers.journal import Journal
    from ddpsim.common.workers.requests import Workers
    from ddpsim.prediction.answers import RowFunction

Row = TypeVar("Row")


_Stage = tuple[str, int, dict[int, Any], Callable[[list[Any]], str] | None]
"""Name of the rows, their number, those that are done by position, and a function from these to the file's text."""


@dataclass(slots=True)
class ResumableCommand:
    """The rows that a command has computed so far, and the pool that computes the rest.

    Attributes:
        crew: the pool; None is this process.
        journal: the one that the user names, or one next to the file that is being made; None without a file.
        out: the file of -o; None without it.
        notes_printed: the notes of all rows.
    """

    crew: WorkerPool | None
    journal: Journal | None
    out: str | None
    notes_printed: set[str] = field(default_factory=set)
    _stages: list[_Stage] = field(default_factory=list)

    def compute(
        self,
        function: RowFunction[Any, Row],
        items: Sequence[Any],
        name: Callable[[Any], str] = str,
        /,
        *,
        what: str,
        notes: Callable[[Row], Iterable[str]] | None = None,
        part: Callable[[list[Row]], str] | None = None,
    ) -> list[Row]:
        """Return the rows of items; where it ends early, or what follows does, those that are done are written.

        Args:
            function, items, name: as those of `ddpsim.prediction.answers.Rows`.
            what: name of the rows, in the plural.
            notes: returns notes on a row for people.
            part: returns the text of the file of -o for some rows; None where that has no parts.
        """
        from ddpsim.prediction.answers import Rows

        show, noted = Progress(what), -1

        def progress(done: int, total: int) -> None:
            nonlocal noted
            if noted < 0:
                self._say_what_is_known(what, done, total)
            if notes is not None:
                note_once(
                    chain.from_iterable(map(notes, islice(rows.found.values(), max(noted, 0), None))),
                    self.notes_printed,
                )
            noted = done
            show(done, total)

        rows = Rows(function, items, name, crew=self.crew, journal=self.journal, progress=progress)
        self._stages.append((what, len(items), rows.found, part))
        return rows.all()

    def compute_more(self, *arguments: Any, progress: Callable[[int, int], None]) -> list[Any]:
        """Return results from which the rows follow; they are in no part of the file, and in no note on its rows."""
        from ddpsim.prediction.answers import Rows

        return Rows(*arguments, crew=self.crew, journal=self.journal, progress=progress).all()

    def deliver(self, text: Callable[[], str]) -> None:
        """Write the whole file of -o, if there is one; no part of it is written any more."""
        self._stages.clear()
        if self.out is not None:
            deliver(self.out, text())

    def write_part(self) -> None:
        """Write the rows done by a command that ends early, in whole lines, and note how many they are and where.

        A lone row that is not done gets no note.
        """
        for what, total, rows, part in self._stages:
            where = None if self.journal is None else self.journal.path
            goes_on = "" if where is None else "; the same command goes on from there"
            if rows and self.out is not None and part is not None:
                deliver(self.out, part([rows[position] for position in sorted(rows)]))
                where = Path(self.out)
            if (rows or total > 1) and (where is not None or len(rows) < total):
                location = f"; {where} has them{goes_on}" if rows and where is not None else ""
                note(f"note: {len(rows)} of {total} {what} were done{location}")

    def _say_what_is_known(self, what: str, known: int, total: int) -> None:
        """Note how many rows an existing journal spares this command."""
        if self.journal is None or (self.journal.is_new and not known):
            return
        if known or len(self._stages) == 1:
            others = "" if known else ": what it holds is of other questions, parts of these, or another version"
            note(f"note: {known} of {total} {what} are in {self.journal.path} already{others}")


@contextmanager
def make_resumable(
    by: Workers, points: int, out: str | None = None, report: str | None = None
) -> Iterator[ResumableCommand]:
    """Yield a command that computes `points` of rows, with a journal: the cache, or one next to `out` or `report`.

    Raises:
        typer.Exit: stopped by a signal.
        InputError: a cache that would be written over; as `Workers.crew`, and as the block.
    """
    from ddpsim.common.workers.journal import open_journal

    if by.cache is not None:
        check_apart(by.cache, "--cache", {"-o": out, "--report": report})
    beside = next((each for each in (out, report) if each is not None and each != STANDARD_OUTPUT), None)
    try:
        with stop_on_signals():
            done: ResumableCommand | None = None
            try:
                with by.crew(points) as crew, open_journal(by.cache, beside) as journal:
                    done = ResumableCommand(crew, journal, out)
                    yield done
            except (InputError, Stopped):
                if done is not None:
                    done.write_part()
                raise
    except Stopped as error:
        note(f"error: stopped by {error}")
        raise typer.Exit(128 + error.number) from None
