"""Draw mutants, run the tests of each one's room, and print how many the tests kill: `python -m studies.mutants`.

A mutant that the tests of `make test` do not kill is tried on those that it leaves to `make check`. What is found is
kept, a line a mutant, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from studies.mutants.mutations import Mutant, drawn, mutated

ROOT = Path(__file__).parents[2]
ROOMS = [
    "ddpsim/bucketing", "ddpsim/collectives", "ddpsim/simulation", "ddpsim/schedules",
    "ddpsim/prediction", "ddpsim/planning", "ddpsim/workload", "ddpsim/trace", "ddpsim/explaining", "ddpsim/topology",
    "ddpsim/calibrating", "ddpsim/common/options", "ddpsim/common/workers", "ddpexec/ddp", "ddpexec/running",
    "ddpexec/tuning",
]  # fmt: skip
"""What is mutated; the tests of a room are in the folder of its name below `tests`."""
SEED = 27
PROCESSOR_S, TIMEOUT_S = 300, 1500
"""For the tests of a room, of a processor and on the clock; a mutant that takes longer is killed: it does not come to
an end. All tests of the room that takes longest need about 100 s of a processor."""
COPIED = "ddpsim", "ddpexec", "tests", "pyproject.toml"
NOT_COPIED = {"out", ".git", ".venv"}
NONE_CHOSEN = 5
"""What pytest ends with where no test was chosen."""


def room_of(mutant: Mutant) -> str:
    """Return the room of a mutant's module."""
    return next(room for room in ROOMS if mutant.module.startswith(f"{room}/"))


def copied(folder: Path) -> None:
    """Make a checkout of copies and, for all that tests only read, links."""
    for path in ROOT.iterdir():
        if path.name in COPIED and path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__", "_shipped"))
        elif path.name in COPIED:
            shutil.copy(path, folder / path.name)
        elif path.name not in NOT_COPIED:
            (folder / path.name).symlink_to(path)


def nearest(folder: Path, mutant: Mutant) -> list[str]:
    """Return the tests of a mutant's room that have its module's name or import it: they kill most, in seconds."""
    room, module = folder / "tests" / room_of(mutant), Path(mutant.module)
    dotted = ".".join(module.with_suffix("").parts)
    files = sorted(room.rglob("test_*.py"))
    near = [file for file in files if module.stem in file.stem or dotted in file.read_text()]
    return [str(path.relative_to(folder)) for path in near]


def limit() -> None:
    """Let a process have so much of a processor."""
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S))


def killed(folder: Path, tests: list[str], part: str) -> bool:
    """Return whether a part of `tests` fails in `folder`."""
    words = [sys.executable, "-m", "pytest", *tests, "-x", "--part", part]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT_S, check=False, preexec_fn=limit
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode not in (0, NONE_CHOSEN)


def judged(mutant: Mutant, folder: Path) -> str:
    """Return what kills a mutant: `test`, `check` or `nothing`."""
    path = folder / mutant.module
    source = path.read_text()
    path.write_text(mutated(source, mutant))
    try:
        near, every = nearest(folder, mutant), [f"tests/{room_of(mutant)}"]
        if (near and killed(folder, near, "quick")) or killed(folder, every, "quick"):
            return "test"
        return "check" if killed(folder, every, "rest") else "nothing"
    finally:
        path.write_text(source)


def table(found: dict[str, str], mutants: list[Mutant]) -> str:
    """Return a line a room, and one for all."""
    lines = ["room | mutants | killed by `make test` | killed by all tests of the room", "--- | --: | --: | --:"]
    for name in (*ROOMS, "all"):
        ends = [found[str(each)] for each in mutants if str(each) in found and name in (room_of(each), "all")]
        lines.append(f"{name} | {len(ends)} | {ends.count('test')} | {len(ends) - ends.count('nothing')}")
    return "\n".join(lines)


def main() -> None:
    """Go on from what is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="how many are drawn")
    parser.add_argument("--first", type=int, help="try only so many of them now, spread over all")
    parser.add_argument("--out", type=Path, default=Path("out/mutants.jsonl"), help="what is found is kept here")
    given = parser.parse_args()
    mutants = drawn(ROOT, ROOMS, given.count, SEED)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    found = {entry["mutant"]: entry["killed_by"] for entry in map(json.loads, lines)}
    now = mutants[:: max(1, len(mutants) // given.first)][: given.first] if given.first else mutants
    with tempfile.TemporaryDirectory() as name, given.out.open("a") as kept:
        copied(Path(name))
        for mutant in now:
            if str(mutant) not in found:
                found[str(mutant)] = judged(mutant, Path(name))
                kept.write(json.dumps({"mutant": str(mutant), "killed_by": found[str(mutant)]}) + "\n")
                kept.flush()
                print(f"{mutant}: killed by {found[str(mutant)]}", flush=True)
    print(table(found, mutants))


if __name__ == "__main__":
    main()
