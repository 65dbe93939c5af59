from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddpexec.lab.netlab import support
from tests.ddpexec.lab.netlab.processes import end

ROOT = Path(__file__).parents[4]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def lab_machine() -> Iterator[None]:
    """Skip where this machine cannot have a lab network, with what it lacks; in CI that is a failure.

    One test at a time, also among parallel workers: each removes the leftovers of dead labs.
    """
    if lacking := support.list_missing():
        reason = f"a lab network needs {'; '.join(lacking)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with (Path(tempfile.gettempdir()) / "ddpexec-netlab-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def ddpexec(lab_machine: None) -> Iterator[Start]:
    """Start a command of ddpexec in a session of its own; at the test's end it is gone, and its lab with it."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ddpexec", *map(str, arguments)]
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        end(process)
