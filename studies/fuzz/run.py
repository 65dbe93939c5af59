"""Runs of many cases, one after another, in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from studies.fuzz import commands, loaders
from studies.fuzz.running import MOST_S, Failure, Progress, bounded_memory, bounded_time, emptied, judged, random_of

Say = Callable[[str], object]


def run_loaders(
    count: int,
    seed: int,
    folder: Path,
    *,
    only: str | None = None,
    say: Say = lambda line: None,
    most_s: float = MOST_S,
) -> list[Failure]:
    """Run `count` cases in turn over all loaders, or over `only` one, and return those that failed."""
    names = [only] if only else sorted(loaders.targets())
    progress, failures = Progress(count), list[Failure]()
    emptied(folder / "case")
    with bounded_memory():
        for number in range(count):
            target = loaders.targets()[names[number % len(names)]]
            file = folder / "case" / target.name / target.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(target.content(random_of(seed, target.name, number)))
            if failure := judged(f"{target.name} {number}", partial(_bounded, partial(target.load, file), most_s)):
                _add(failure, failures, say)
            if line := progress.at(number, len(failures)):
                say(line)
    return failures


def run_commands(
    count: int, seed: int, folder: Path, *, say: Say = lambda line: None, most_s: float = MOST_S
) -> list[Failure]:
    """Run `count` commands and return those that failed."""
    commands.prepare(emptied(folder / "whole"))
    progress, failures = Progress(count), list[Failure]()
    with bounded_memory():
        for number in range(count):
            random = random_of(seed, "commands", number)
            action, what = commands.case(random, folder / "whole", emptied(folder / "case"))
            if failure := judged(f"commands {number}: {what}", partial(_bounded, action, most_s)):
                _add(failure, failures, say)
            if line := progress.at(number, len(failures)):
                say(line)
    return failures


def _add(failure: Failure, failures: list[Failure], say: Say) -> None:
    if all(failure.kind != other.kind for other in failures):
        say(f"{failure.kind}: {failure.case}")
    failures.append(failure)


def _bounded(action: Callable[[], object], most_s: float) -> None:
    with bounded_time(most_s):
        action()
