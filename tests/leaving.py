"""Which cases `make test` leaves to `make check` for the time that they take: `python -m tests.leaving SECONDS.json`.

SECONDS.json is what `pytest -p tests.processor --seconds-by-test` wrote of a run. The list in `costly.txt` is made of
it and of what it says already of cases that the run left out: the cases that take `LEAST_S` and more, the costliest
first, while those that `make test` keeps are `KEPT` of all. A test that has several cases keeps its cheapest one; in
the rooms of `WHOLE`, the model itself, none goes that is alone.

Continuous integration runs each test once at least, and leaves of those that have several cases the costly ones
(`further`); which of them are questions of their own, `APART` says.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tests.processor import COLLECTED

LIST = Path(__file__).with_name("costly.txt")
KEPT = 0.92
"""Of all cases, at least; nine tenths is what is asked of `make test`, and what else a test may need is left too."""
LEAST_S = 0.8
"""Of the processor: what takes less stays. So chosen that what is kept takes two idle cores less than five minutes."""
WHOLE = ("tests/ddpsim/bucketing/", "tests/ddpsim/collectives/", "tests/ddpsim/simulation/", "tests/ddpexec/ddp/")
APART = ("tests/test_docs.py", "tests/test_readme_figures.py")
"""Files whose cases each hold another command or figure of the documentation."""


def listed() -> dict[str, float]:
    """Return the cases of the list with the processor's seconds that each was measured to take."""
    found = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        seconds, _, case = line.partition(" ")
        found[case] = float(seconds)
    return found


def chosen(seconds: Mapping[str, float], kept: float = KEPT) -> dict[str, float]:
    """Return the cases to leave, of all that `seconds` has."""
    cases = {case: taken_s for case, taken_s in seconds.items() if case != COLLECTED}
    alike = Counter(map(_test, cases))
    most = int((1 - kept) * len(cases))
    found: dict[str, float] = {}
    for case, taken_s in sorted(cases.items(), key=lambda each: (-each[1], each[0])):
        if len(found) == most or taken_s < LEAST_S:
            break
        alone, test = alike[_test(case)] == 1, _test(case)
        if alone and ("[" in case or test.startswith(WHOLE)):
            continue
        alike[test] -= 1
        found[case] = taken_s
    return found


def further(cases: Iterable[str], costly: Collection[str]) -> set[str]:
    """Return those of `costly` beside which another case of the same test stays; none of `APART`."""
    kept = {_test(case) for case in cases if case not in costly}
    return {case for case in costly if _test(case) in kept and not case.startswith(APART)}


def _test(case: str) -> str:
    return case.partition("[")[0]


def main(path: str) -> None:
    """Write the list anew."""
    measured = {case: spent_s for case, (spent_s, _) in json.loads(Path(path).read_text(encoding="utf-8")).items()}
    every = listed() | measured
    found = chosen(every)
    LIST.write_text("".join(f"{taken_s:.1f} {case}\n" for case, taken_s in found.items()), encoding="utf-8")
    print(f"{len(found)} of {len(every)} cases are left, {sum(found.values()):.0f} of {sum(every.values()):.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
