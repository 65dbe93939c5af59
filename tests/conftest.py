"""What all tests share: which of them `make test` runs, what runs again when it fails, and no haste on a slow machine.

`make test` leaves to `make check` what a test needs beside this interpreter: a network namespace, a browser, a wheel,
a wait (processes that are stopped, lost, or launched anew), or minutes of a processor. A test says so with
`@pytest.mark.needs("wait")`; who asks for a lab or a browser in a fixture need not. The costliest cases of all others
are listed in `costly.txt`, which `tests.leaving` writes of a measured run. `--part` chooses: `quick` is what
`make test` runs, `rest` what it leaves, `each` what continuous integration runs: each test, without the costly ones of
several cases. Without it every test runs.
"""

from __future__ import annotations

import collections
import gc
import re
import signal
import socket
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from ddpsim.common import other_work
from tests import leftovers
from tests.leaving import further, listed
from tests.profile import examples

NEEDS = {
    "namespace": "a network namespace",
    "browser": "a browser",
    "wheel": "a wheel",
    "wait": "a wait for other processes",
    "minutes": "minutes of a processor",
    "seconds": "seconds of a processor, more than others",
}
FIXTURES = {"lab_machine": "namespace", "browser": "browser"}
"""What a fixture's name says of the test that asks for it."""
COSTLY = frozenset(listed())
ABORTED = "RankAbortedError"
"""The one failure after which every test runs once more: torch's native code has aborted a rank."""
AGAIN = "run again"
HAS_TORCH = find_spec("torch") is not None
IMPORTS_TORCH = re.compile(r"^(?:import|from) torch\b", re.MULTILINE)

settings.register_profile("tests", deadline=None, max_examples=examples(100))
settings.load_profile("tests")

TOLD_FROM = other_work.BUSY_SHARE
"""Tests run beside each other: none is told of it, but one that asks for `busy_is_told`."""
other_work.BUSY_SHARE = float("inf")

# A shell's background job starts with SIGINT ignored, and every command that a test interrupts would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", choices=("quick", "rest", "each"), help="what `make test` runs, what it leaves, or CI")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out modules that import torch where it is not installed: `ddpsim` alone is tested there."""
    if HAS_TORCH or collection_path.suffix != ".py":
        return None
    return True if IMPORTS_TORCH.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Send what a worker says of reruns at once.

    pytest-rerunfailures writes twice on a socket for each test and then waits for an answer: with Nagle's algorithm and
    delayed acknowledgements that is 40 ms, half the time of a test.
    """
    if connection := getattr(getattr(config, "failures_db", None), "sock", None):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def needed(item: pytest.Item) -> str | None:
    """Return what a test needs beside this interpreter; None is nothing."""
    for fixture, need in FIXTURES.items():
        if fixture in getattr(item, "fixturenames", ()):
            return need
    marker = item.get_closest_marker("needs")
    if marker is None:
        return "seconds" if item.nodeid in COSTLY else None
    (need,) = marker.args
    if need not in NEEDS:
        raise pytest.UsageError(f"{item.nodeid}: needs {need!r}; known: {', '.join(NEEDS)}")
    return str(need)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        shares_clock = item.get_closest_marker("shares_clock") is not None
        if shares_clock and needed(item) is None:
            raise pytest.UsageError(f"{item.nodeid}: `make test` runs nothing that shares a clock with other processes")
        only = [".*"] if shares_clock else [ABORTED]
        item.add_marker(pytest.mark.flaky(reruns=1, only_rerun=only))
    if not (part := config.getoption("--part")):
        return
    needs = {item.nodeid: need for item in items if (need := needed(item)) is not None}
    if part == "each":
        costly = {case for case, need in needs.items() if need in ("minutes", "seconds")}
        leaves = further((item.nodeid for item in items), costly)
    else:
        leaves = {item.nodeid for item in items if (item.nodeid in needs) == (part == "quick")}
    chosen = [item for item in items if item.nodeid not in leaves]
    others = [item for item in items if item.nodeid in leaves]
    left = collections.Counter(needs[item.nodeid] for item in others if item.nodeid in needs)
    items[:] = chosen
    config.hook.pytest_deselected(items=others)
    config.stash[LEFT] = left


LEFT = pytest.StashKey[collections.Counter[str]]()


def pytest_collection_finish() -> None:
    """Keep what imports and collection made out of garbage collections: hundreds of thousands of objects each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what was left to the process that started this one, if any."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = dict(session.config.stash.get(LEFT, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT] = collections.Counter(getattr(node, "workeroutput", {}).get("left", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Name the tests that ran again, with their reason, and say how many cases are left to `make check`."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_line(f"{AGAIN}: {report.nodeid}: {str(report.longrepr).strip().splitlines()[-1]}")
    if config.getoption("--part") in ("quick", "each") and (left := config.stash.get(LEFT, None)):
        needs = ", ".join(f"{count} that need {NEEDS[need]}" for need, count in left.most_common())
        terminalreporter.write_line(f"left to `make check`: {sum(left.values())} cases: {needs}")


@pytest.fixture
def busy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands say when the machine is busy, as they do outside of tests."""
    monkeypatch.setattr(other_work, "BUSY_SHARE", TOLD_FROM)


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test by its name that leaves something behind, and put it back, once all that it asked for is undone."""
    before = leftovers.state()
    yield
    if left := leftovers.found(before):
        pytest.fail(f"{request.node.nodeid} leaves behind {', '.join(left)}", pytrace=False)


@pytest.fixture(autouse=True, scope="session")
def _standing_ranks() -> Iterator[None]:
    """End a worker's standing ranks with it."""
    yield
    if "tests.ddpexec.groups.pool" in sys.modules:
        from tests.ddpexec.groups import pool

        pool.close()
