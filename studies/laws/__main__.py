"""`python -m studies.laws --count 2000 --seed S`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from studies.fresh import seed
from studies.laws.laws import LAWS, Outcome, judged


def main() -> int:
    """Print each case that broke a law, and how many kept each; return 1 where one broke otherwise than by a choice."""
    parser = argparse.ArgumentParser(prog="python -m studies.laws", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=seed())
    given = parser.parse_args()
    found: list[Outcome] = []
    for number in range(given.count):
        found.append(judged(given.seed, number))
        last = found[-1]
        if last.what != "holds":
            slower = f"{last.before_s * 1e3:.3f} to {last.after_s * 1e3:.3f} ms"
            cause = f", not with {last.cause}" if last.cause else ""
            print(f"{last.what}: {last.law}, {last.case}: {slower}{cause} (case {number})", flush=True)
    counted = Counter((each.law, each.what) for each in found)
    for law in LAWS:
        kept, chosen, broken = (counted[law.name, what] for what in ("holds", "choice", "broken"))
        print(f"{law.name:18} {kept:5} hold, {chosen:3} by NCCL's choice, {broken:3} broken")
    print(f"seed {given.seed}: {given.count} cases")
    return 1 if any(each.what == "broken" for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
