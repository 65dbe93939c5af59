"""`python -m studies.fuzz --count N --seed S [--workers W] [--commands] [--only LOADER] [--show NUMBER]`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from io import TextIOWrapper

from studies.fuzz import loaders
from studies.fuzz.run import Found, Run, case_folder, run_cases
from studies.fuzz.running import random_of


def main() -> int:
    """Run the cases, print each kind of failure once, and return 1 where there was one."""
    parser = argparse.ArgumentParser(prog="python -m studies.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="cases in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--commands", action="store_true", help="whole commands instead of loaders")
    parser.add_argument("--only", choices=sorted(loaders.targets()), help="one loader")
    parser.add_argument("--show", type=int, help="with --only: print the file of one case and run nothing")
    given = parser.parse_args()
    if given.show is not None:
        content = loaders.targets()[given.only].content(random_of(given.seed, given.only, given.show))
        sys.stdout.buffer.write(content)
        return 0
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # cases hold what is no text
    begin_s = time.monotonic()
    with case_folder() as folder:
        run = Run(given.seed, folder, "commands" if given.commands else given.only)
        found = run_cases(given.count, run, workers=given.workers, say=lambda line: print(line, flush=True))
    kinds = Counter(failure.kind for failure in found.failures)
    for kind, count in kinds.most_common():
        first = next(failure for failure in found.failures if failure.kind == kind)
        print(f"\n{count} x {kind}\n  first: {first.case}\n{first.detail[-1500:]}")
    _print_by_loader(found)
    failed, took_s = len(found.failures), time.monotonic() - begin_s
    print(f"seed {given.seed}: {given.count} cases, {failed} failed in {len(kinds)} kinds, {took_s:.0f} s")
    return 1 if failed else 0


def _print_by_loader(found: Found) -> None:
    """Print how many mutated files each loader was given, how many of them failed, and how fast it was."""
    failed = Counter(failure.case.split()[0].rstrip(":") for failure in found.failures)
    for name in [*sorted(found.cases), "all"]:
        cases, wrong, seconds = (
            counted.total() if name == "all" else counted[name] for counted in (found.cases, failed, found.seconds)
        )
        print(f"{name:16} {cases:8} cases {wrong:6} failed {cases / max(seconds, 1e-9):8.0f} cases a CPU-second")


if __name__ == "__main__":
    sys.exit(main())
