"""`python -m studies.fuzz --count N --seed S [--commands] [--only TARGET] [--show NUMBER]`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from studies.fuzz import loaders
from studies.fuzz.run import run_commands, run_loaders
from studies.fuzz.running import Failure, random_of


def main() -> int:
    """Run the cases, print each kind of failure once, and return 1 where there was one."""
    parser = argparse.ArgumentParser(prog="python -m studies.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="cases in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", action="store_true", help="whole commands instead of loaders")
    parser.add_argument("--only", choices=sorted(loaders.targets()), help="one loader")
    parser.add_argument("--show", type=int, help="with --only: print the file of one case and run nothing")
    given = parser.parse_args()
    if given.show is not None:
        content = loaders.targets()[given.only].content(random_of(given.seed, given.only, given.show))
        sys.stdout.buffer.write(content)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if given.commands:
            found = run_commands(given.count, given.seed, Path(folder), say=print)
        else:
            found = run_loaders(given.count, given.seed, Path(folder), only=given.only, say=print)
    kinds = Counter(failure.kind for failure in found)
    for kind, count in kinds.most_common():
        first = next(failure for failure in found if failure.kind == kind)
        print(f"\n{count} x {kind}\n  first: {first.case}\n{first.detail[-1500:]}")
    if not given.commands:
        _print_by_loader([given.only] if given.only else sorted(loaders.targets()), given.count, found)
    print(f"seed {given.seed}: {given.count} cases, {len(found)} failed in {len(kinds)} kinds")
    return 1 if found else 0


def _print_by_loader(names: Sequence[str], count: int, found: Sequence[Failure]) -> None:
    """Print how many mutated files each loader was given, and how many of them failed."""
    failed = Counter(failure.case.split()[0] for failure in found)
    for position, name in enumerate(names):
        print(f"{name:16} {len(range(position, count, len(names))):8} cases {failed[name]:6} failed")


if __name__ == "__main__":
    sys.exit(main())
