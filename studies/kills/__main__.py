"""`python -m studies.kills --count 100 --seed S`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from studies.fresh import seed
from studies.kills.commands import COMMANDS
from studies.kills.trials import counted, trials


def main() -> int:
    """Print what is wrong with what commands leave, and return 1 where something is."""
    parser = argparse.ArgumentParser(prog="python -m studies.kills", description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=seed())
    parser.add_argument("--only", action="append", choices=list(COMMANDS), help="a command; may be repeated")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = trials(given.count, given.seed, Path(folder), partial(print, flush=True), given.only)
    print(counted(given.count, given.seed, given.only))
    print(f"seed {given.seed}: {given.count} trials, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
