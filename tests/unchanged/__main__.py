"""Record what everything answers, and hold today's answers against it.

python -m tests.unchanged record FILE       # before the change
python -m tests.unchanged compare FILE      # after it: what differs, exit 1 if anything does that is not meant

`--only PATTERN` takes the cases whose name has a match; `--list` names them. A difference that is meant is a line of
`meant.toml`, with its reason. Cases that a record has and that are gone are differences too.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import re
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ddpsim.cli.progress import Progress
from tests.unchanged import cases, executor, files, jobs, refusals, surface
from tests.unchanged.command import answer
from tests.unchanged.differences import Difference, differences

MEANT = Path(__file__).with_name("meant.toml")
WORKERS = 2
LONGEST_S = 60
"""A case that takes longer has none of the answers that are recorded: a command that waits for something."""
Recorded = Callable[[], Any]


def recorded_cases() -> Iterator[tuple[str, Recorded]]:
    """Yield by name what is recorded, but for what real ranks do."""
    for job in jobs.jobs():
        yield f"job: {job}", job.run
    for line in cases.cases():
        yield f"{line} (document)", partial(answer, [*line.split(), "--json"])
        yield f"{line} (text)", partial(answer, line.split())
    yield from files.files()
    yield from surface.surface()
    yield from refusals.refusals()
    yield from refusals.pairs()


def scale_of(found: Any) -> float:
    """Return the longest end of a recorded trace, in seconds; 0 of anything else."""
    if not isinstance(found, dict) or "trace" not in found:
        return 0.0
    return max((each["end_s"] for each in found["trace"]["iterations"]), default=0.0)


def record(only: str) -> Iterator[tuple[str, Any]]:
    """Yield each case's name and answer: on `WORKERS` processes, then those of real ranks."""
    cases.prepare()
    wanted = re.compile(only)
    here = [(name, run) for name, run in recorded_cases() if wanted.search(name)]
    ranks = [(name, run) for name, run in executor.cases() if wanted.search(name)]
    progress = Progress("cases")
    total = len(here) + len(ranks)
    context = multiprocessing.get_context("fork")
    _RUNS.update(here)
    with context.Pool(WORKERS, _begin) as pool:
        for number, (name, found) in enumerate(pool.imap_unordered(_run, list(_RUNS), chunksize=4), 1):
            progress(number, total)
            yield name, found
    for number, (name, run) in enumerate(ranks, len(here) + 1):
        yield name, json.loads(json.dumps(run()))
        progress(number, total)


RAISED = "raised"
_RUNS: dict[str, Recorded] = {}
"""What the processes have inherited."""


def _run(name: str) -> tuple[str, Any]:
    """Return a case's answer as JSON has it; what ends it otherwise than by an answer is one too, and a defect."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST_S)
    try:
        return name, json.loads(json.dumps(_RUNS[name]()))
    except Exception as error:
        return name, {RAISED: f"{type(error).__name__}: {error}"}
    finally:
        signal.alarm(0)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"no answer within {LONGEST_S} s")


def _begin() -> None:
    """Give a process of its own an empty standard input."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def compare(kept: Mapping[str, Any], only: str) -> Iterator[tuple[str, list[Difference]]]:
    """Yield each case that differs, those that are gone last."""
    wanted = re.compile(only)
    missing = {name for name in kept if wanted.search(name)}
    for name, found in record(only):
        missing.discard(name)
        if name in kept and (lines := list(differences(kept[name], found, scale=scale_of(kept[name])))):
            yield name, lines
    for name in sorted(missing):
        yield name, [Difference("the case", "was recorded", "(is gone)", "key")]


def meant() -> list[tuple[re.Pattern[str], re.Pattern[str], str]]:
    """Return the differences that are meant: patterns of the case's name and of the key, and why."""
    found = tomllib.loads(MEANT.read_text()).get("meant", [])
    return [(re.compile(each["case"]), re.compile(each["key"]), each["why"]) for each in found]


def write(path: Path, kept: Mapping[str, Any]) -> None:
    """Write a record."""
    text = json.dumps(kept, sort_keys=True).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def read(path: Path) -> dict[str, Any]:
    """Read a record."""
    raw = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return found


def main(arguments: Sequence[str]) -> int:
    """Record, or compare; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.unchanged", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", metavar="PATTERN", help="cases whose name has a match")
    parser.add_argument("--all", action="store_true", help="every difference of a case, not the first five")
    asked = parser.parse_args(arguments)
    if asked.verb == "record":
        kept = read(asked.file) if asked.only and asked.file.exists() else {}
        kept |= dict(record(asked.only))
        write(asked.file, kept)
        for name in (name for name, found in kept.items() if isinstance(found, dict) and RAISED in found):
            print(f"{name}\n    {kept[name][RAISED]}")
        print(f"{len(kept)} cases")
        return 0
    reasons, unmeant, counted = meant(), 0, 0
    for name, found in compare(read(asked.file), asked.only):
        lines = [each for each in found if not any(c.search(name) and k.search(each.key) for c, k, _ in reasons)]
        counted += 1
        if lines:
            unmeant += 1
            shown = lines if asked.all else lines[:5]
            more = [f"and {len(lines) - len(shown)} more"] if len(lines) > len(shown) else []
            print("\n    ".join((name, *map(str, shown), *more)), flush=True)
    print(f"{counted} cases differ, {counted - unmeant} of them as meant")
    return int(unmeant > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
