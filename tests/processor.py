"""Which tests take the time: a plugin of pytest, `-p tests.processor`.

For each test, from its set-up to its teardown, it counts the processor's seconds of this process, of those that it has
started and of theirs, standing ranks among them; and the seconds that pass. The terminal has them by file, the greatest
first, and `--seconds-by-test FILE` writes them by test, in JSON. Imports and collection are a line of their own.
`python -m tests.times --by-test FILE` does so of all of `make test`.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
COLLECTED = "imports and collection"
FILES = 40
"""How many are shown, those that take longest."""
SPENT = pytest.StashKey[Counter[str]]()
PASSED = pytest.StashKey[Counter[str]]()


def spent_s(process: str = "self") -> float:
    """Return the processor seconds of a process, of its children that have ended, and of those that run."""
    found = 0.0
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        found = sum(int(ticks) for ticks in fields[11:15]) / TICKS_PER_S
        for task in os.listdir(f"/proc/{process}/task"):
            for child in Path(f"/proc/{process}/task/{task}/children").read_text().split():
                found += spent_s(child)
    except OSError:  # it has ended meanwhile: whoever waited for it counts its seconds
        pass
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds-by-test", type=Path, help="write the processor's seconds, and those that passed, there")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SPENT], config.stash[PASSED] = Counter(), Counter()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[SPENT][COLLECTED] += spent_s()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    begin_s, before_s = time.monotonic(), spent_s()
    taken = yield
    item.config.stash[SPENT][item.nodeid] += spent_s() - before_s
    item.config.stash[PASSED][item.nodeid] += time.monotonic() - begin_s
    return taken


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        for name, key in (("spent_s", SPENT), ("passed_s", PASSED)):
            session.config.workeroutput[name] = dict(session.config.stash[key])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for name, key in (("spent_s", SPENT), ("passed_s", PASSED)):
        node.config.stash[key].update(getattr(node, "workeroutput", {}).get(name, {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    spent, passed = config.stash[SPENT], config.stash[PASSED]
    if target := config.getoption("--seconds-by-test"):
        found = {test: [round(taken_s, 2), round(passed[test], 2)] for test, taken_s in spent.most_common()}
        target.write_text(json.dumps(found, indent=0))
    for line in by_file(spent, passed):
        terminalreporter.write_line(line)


def by_file(spent: Counter[str], passed: Counter[str]) -> list[str]:
    """Return a line for each of the files that take longest, and one for all."""
    files, cases, waited = Counter[str](), Counter[str](), Counter[str]()
    for test, taken_s in spent.items():
        file = test.partition("::")[0]
        files[file] += taken_s
        waited[file] += passed[test]
        cases[file] += test != COLLECTED
    rows = [*files.most_common(FILES), (f"all {len(files)} files", files.total())]
    totals = {rows[-1][0]: (waited.total(), cases.total())}
    lines = ["processor's s, s that passed, cases"]
    for name, taken_s in rows:
        passed_s, count = totals.get(name, (waited[name], cases[name]))
        lines.append(f"{taken_s:8.1f} {passed_s:8.1f} {count:6}  {name}")
    return lines
