"""Runs of many cases in this process, or in several that take chunks of numbers in turn."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path

from studies.fuzz import commands, loaders
from studies.fuzz.running import MOST_S, Failure, Progress, bounded_memory, bounded_time, emptied, judged, random_of

Say = Callable[[str], object]
_CHUNK = 500
"""Cases that a process takes at a time: some seconds of them."""
_DEAR_EVERY = 4
"""Rounds over all loaders in which a dear one gets one case."""
DEAR = frozenset({"explain"})
"""Loaders that take 50 ms a file, twenty times as long as others: `explain` predicts what other buckets would gain."""


@dataclass(slots=True)
class Found:
    """What came of cases: those that failed, and by target how many there were and the seconds of a processor."""

    failures: list[Failure] = field(default_factory=list)
    cases: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    def add(self, other: Found) -> None:
        """Count what came of other cases too."""
        self.failures += other.failures
        self.cases.update(other.cases)
        self.seconds.update(other.seconds)


@dataclass(frozen=True, slots=True)
class Run:
    """What is run: chunks of its numbers make the same cases in whichever process.

    Attributes:
        only: one loader; None deals the numbers to all in turn, `commands` runs whole commands.
        folder: an empty one.
    """

    seed: int
    folder: Path
    only: str | None = None
    most_s: float = MOST_S

    def cases(self, numbers: range) -> Found:
        """Run the cases of some numbers in this process."""
        folder, found = self.folder / str(os.getpid()), Found()
        one = self._command if self.only == "commands" else self._file
        with bounded_memory():
            for number in numbers:
                begin_s = time.process_time()
                name, failure = one(number, folder)
                found.cases[name] += 1
                found.seconds[name] += time.process_time() - begin_s  # type: ignore[assignment]
                if failure:
                    found.failures.append(failure)
        return found

    def _file(self, number: int, folder: Path) -> tuple[str, Failure | None]:
        name = self.only or turns()[number % len(turns())]
        target = loaders.targets()[name]
        file = folder / name / target.file
        if file.exists():
            file.unlink()  # some file systems wait for the disk where a file is written over
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(target.content(random_of(self.seed, name, number)))
        return name, judged(f"{name} {number}", partial(_bounded, partial(target.load, file), self.most_s))

    def _command(self, number: int, folder: Path) -> tuple[str, Failure | None]:
        whole = folder / "whole"
        if not whole.exists():
            commands.prepare(emptied(whole))
        action, what = commands.case(random_of(self.seed, "commands", number), whole, emptied(folder / "case"))
        return "commands", judged(f"commands {number}: {what}", partial(_bounded, action, self.most_s))


@cache
def turns() -> tuple[str, ...]:
    """Return the loaders in the order in which they get cases, again and again."""
    names = sorted(loaders.targets())
    return tuple(name for turn in range(_DEAR_EVERY) for name in names if not (turn and name in DEAR))


def run_cases(count: int, run: Run, *, workers: int = 1, say: Say = lambda line: None) -> Found:
    """Run `count` cases, in `workers` processes where that is more than one, and return what came of them."""
    progress, found = Progress(count), Found()
    chunks = [range(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK)]
    with _in_order(run, chunks, workers) as each:
        for chunk in each:
            for failure in chunk.failures:
                if all(failure.kind != other.kind for other in found.failures):
                    say(f"{failure.kind}: {failure.case}")
                found.failures.append(failure)
            chunk.failures = []
            found.add(chunk)
            if line := progress.at(found.cases.total(), len(found.failures)):
                say(line)
    return found


@contextmanager
def _in_order(run: Run, chunks: list[range], workers: int) -> Iterator[Iterator[Found]]:
    if workers < 2:
        yield map(run.cases, chunks)
        return
    with get_context("fork").Pool(workers) as pool:
        yield pool.imap(run.cases, chunks)


@contextmanager
def case_folder() -> Iterator[Path]:
    """Yield an empty folder, in memory where the system has such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


def _bounded(action: Callable[[], object], most_s: float) -> None:
    with bounded_time(most_s):
        action()
