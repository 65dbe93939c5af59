"""What a command computes, kept as it is done: the same command goes on from there where it was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ddpsim.cli.destination import STANDARD_OUTPUT, deliver
from ddpsim.cli.output import note, note_once
from ddpsim.cli.progress import Progress
from ddpsim.errors import InputError
from ddpsim.stopping import Stopped, stop_on_signals

if TYPE_CHECKING:
    from ddpsim.workers.asked import Workers
    from ddpsim.workers.crew import WorkerPool
    from ddpsim.workers.journal import Journal, JournalEntry
    from ddpsim.workers.kept import Task

Part = Callable[[Mapping[int, "JournalEntry"]], str]
"""Returns the text of a file that holds what is done alone."""


@dataclass(slots=True)
class _Stage:
    """A task of a command, as far as it has come.

    Attributes:
        what: its items are called.
        total: how many there are.
        found: entries by position.
        out, part: the file of -o and what makes its text of entries; None where there is no such file of a part.
    """

    what: str
    total: int
    out: str | None
    part: Part | None
    found: dict[int, JournalEntry] = field(default_factory=dict)

    def write(self, journal: Path | None) -> None:
        """Write what is done, in whole lines, and say how much that is and where it lies; not of a lone one undone."""
        if not self.found and self.total == 1:
            return
        where = journal
        if self.found and self.out is not None and self.part is not None:
            deliver(self.out, self.part(self.found))
            where = Path(self.out)
        if where is None and len(self.found) == self.total:
            return
        held = f"; {where} has them" if self.found and where is not None else ""
        goes_on = "; the same command goes on from there" if held and journal is not None else ""
        note(f"note: {len(self.found)} of {self.total} {self.what} were done{held}{goes_on}")


@dataclass(slots=True)
class ResumableCommand:
    """What a command has computed so far, and who computes the rest.

    Attributes:
        crew: who computes; None is this process.
        journal: beside the file that is being made; None where that is none.
        told: the notes of all entries.
    """

    crew: WorkerPool | None
    journal: Journal | None
    told: set[str] = field(default_factory=set)
    _stages: list[_Stage] = field(default_factory=list)

    def compute(
        self, task: Task[Any], what: str, out: str | None = None, part: Part | None = None
    ) -> list[JournalEntry]:
        """Return the entries of a task; where it ends early, or what follows does, those that are done are written.

        Args:
            task: of any kind.
            what: its items are called.
            out: the file of -o, which `part` makes of entries by position; None where there is none of a part.
        """
        from ddpsim.workers.kept import compute, forget_wrong

        forget_wrong(task, self.journal)
        stage = _Stage(what, len(task.keys), out, part)
        self._say_what_is_known(task, what)
        self._stages.append(stage)
        show = Progress(what)

        def progress(done: int, total: int) -> None:
            if stage.found:
                note_once(stage.found[next(reversed(stage.found))].notes, self.told)
            show(done, total)

        entries = compute(task, crew=self.crew, journal=self.journal, found=stage.found, progress=progress)
        note_once((line for entry in entries for line in entry.notes), self.told)
        return entries

    def deliver(self, out: str | None, text: Callable[[], str]) -> None:
        """Write a whole file where -o leads, if anywhere; no part of it is written any more."""
        self._stages.clear()
        if out is not None:
            deliver(out, text())

    def write_part(self) -> None:
        """Write what was done by a command that ends early, and say how much that is."""
        for stage in self._stages:
            stage.write(None if self.journal is None else self.journal.path)

    def _say_what_is_known(self, task: Task[Any], what: str) -> None:
        """Note what a journal of before spares this command."""
        if self.journal is None or not self.journal.entries:
            return
        known = sum(key in self.journal.entries for key in task.keys)
        if known or not self._stages:
            others = "" if known else ": what it holds is of another question, or another version"
            note(f"note: {known} of {len(task.keys)} {what} are in {self.journal.path} already{others}")


@contextmanager
def make_resumable(by: Workers, points: int, *files: str | None) -> Iterator[ResumableCommand]:
    """Yield what computes `points` of them and keeps what is done beside the first of `files` that is one.

    Raises:
        typer.Exit: stopped by a signal.
        InputError: as `Workers.crew`, and as the block.
    """
    from ddpsim.workers.journal import journal_beside

    beside = next((each for each in files if each is not None and each != STANDARD_OUTPUT), None)
    try:
        with stop_on_signals():
            done: ResumableCommand | None = None
            try:
                with by.crew(points) as crew, journal_beside(beside) as journal:
                    done = ResumableCommand(crew, journal)
                    yield done
            except (InputError, Stopped):
                if done is not None:
                    done.write_part()
                raise
    except Stopped as error:
        note(f"error: stopped by {error}")
        raise typer.Exit(128 + error.number) from None
