"""Random models under every scheme with random options, each against its definition.

python -m studies.weights --count 1000 --seed 1        # a line a scheme, what differs, what was refused and why
python -m studies.weights --seed 1 --only 17           # one case of them, described
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from studies.weights.cases import SCHEMES, Case, case_of
from studies.weights.reference import Reference
from studies.weights.training import Outcome, trained
from tests.ddpexec.groups import pool, ranks

CASE_TIMEOUT_S = 150


def main(words: Sequence[str] | None = None) -> int:
    """Run cases and print what came of them; return 1 where one differs."""
    parser = argparse.ArgumentParser(prog="python -m studies.weights", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000, help="Cases. [1000]")
    parser.add_argument("--seed", type=int, help="Of all that is drawn; a new one without.")
    parser.add_argument("--only", type=int, help="The case of this number alone.")
    parser.add_argument("--schemes", default=",".join(SCHEMES), help="Families of schemes. [all]")
    asked = parser.parse_args(words)
    seed = random.SystemRandom().randrange(1 << 20) if asked.seed is None else asked.seed
    families = asked.schemes.split(",")
    numbers = range(asked.count) if asked.only is None else [asked.only]
    print(f"seed {seed}, {len(numbers)} cases of {len(families)} families of schemes", flush=True)
    begin_s = time.monotonic()
    tally = study([case_of(seed, number, families) for number in numbers])
    print(tally.text(families))
    print(f"{time.monotonic() - begin_s:.0f} s", file=sys.stderr)
    return 1 if tally.differing else 0


@dataclass
class Tally:
    """What came of cases.

    Attributes:
        equal: by family, how many ended where their definition does.
        refused: by family, how many could not be constructed.
        reasons: why, with how many.
        differing: what is said of each that differs, or ended in an error.
        switches: how often tuners put other plans in force, in the cases that are equal.
        farthest: share of its tolerance that the farthest of the equal ones is from its definition.
    """

    equal: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)
    switches: int = 0
    farthest: float = 0.0

    def add(self, case: Case, said: list[Outcome] | str) -> None:
        """Count what the ranks of a case said, or how it failed."""
        if reason := refusal(said):
            self.refused[case.family] += 1
            self.reasons[reason.splitlines()[0]] += 1
            return
        trouble, share = verdict(case, said)
        if trouble is None:
            self.equal[case.family] += 1
            self.switches += 0 if isinstance(said, str) else said[0].switches
            self.farthest = max(self.farthest, share)
        else:
            self.differing.append(f"{case}\n    {trouble}")
            print(self.differing[-1], flush=True)

    def text(self, families: Sequence[str]) -> str:
        """Return a table, the reasons of refusals, and the numbers."""
        lines = [f"{'scheme':22}{'equal':>7}{'refused':>9}"]
        lines += [f"{name:22}{self.equal[name]:7}{self.refused[name]:9}" for name in families]
        lines += ["", "refused:", *(f"{count:6}  {reason}" for reason, count in self.reasons.most_common())]
        equal, refused = self.equal.total(), self.refused.total()
        counts = f"{len(self.differing)} differ, {equal} end where their definition does, {refused} are refused"
        lines += ["", f"tuners put other plans in force {self.switches} times"]
        return "\n".join([*lines, "", f"{counts}; the farthest at {self.farthest:.2f} of its tolerance"])


def study(cases: Sequence[Case]) -> Tally:
    """Return what comes of `cases`, on standing ranks."""
    tally = Tally()
    try:
        for case in sorted(cases, key=lambda case: case.world):
            tally.add(case, _said(case))
    finally:
        pool.close()
    return tally


def _said(case: Case) -> list[Outcome] | str:
    """Return what each rank came to, or how a rank failed, never answered or left something behind."""
    try:
        return ranks.run(case.world, _answer, case, timeout_s=CASE_TIMEOUT_S)
    except (AssertionError, TimeoutError, pool.RankAbortedError) as error:
        return str(error)


def _answer(rank: int, case: Case) -> Outcome:
    outcome = trained(case, rank)
    if rank == 0 and outcome.refused is None:
        outcome.expected = Reference(case, outcome.groups).train()
    return outcome


def refusal(said: list[Outcome] | str) -> str | None:
    """Return why all ranks alike refused a case; None where they did not."""
    reasons = set() if isinstance(said, str) else {each.refused for each in said}
    return reasons.pop() if len(reasons) == 1 else None


def verdict(case: Case, said: list[Outcome] | str) -> tuple[str | None, float]:
    """Return what is wrong with a case, if anything, and the share of its tolerance that it is off."""
    if isinstance(said, str):
        return said, 0.0
    for rank, each in enumerate(said):
        if each.refused is not None:
            return f"rank {rank} alone refused: {each.refused}", 0.0
    assert said[0].expected is not None
    most = 0.0
    for rank, expected in enumerate(said[0].expected):
        mine = said[rank]
        if len(mine.weights) != len(expected):
            return f"rank {rank} has weights of {len(mine.weights)} moments, not {len(expected)}", 0.0
        for moment, (own, other) in enumerate(zip(mine.weights, expected, strict=True)):
            for index, (one, two) in enumerate(zip(own, other, strict=True)):
                off = float((one - two).abs().max()) if one.numel() else 0.0
                if not off <= case.tolerance:
                    return f"rank {rank}: parameter {index} is off by {off:.3g} after look {moment}", 0.0
                most = max(most, off / case.tolerance)
    return None, most


if __name__ == "__main__":
    sys.exit(main())
