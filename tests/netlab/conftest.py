from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpexec.netlab import support


@pytest.fixture
def lab_machine() -> Iterator[None]:
    """Skip where this machine cannot have a lab network, with what it lacks; in CI that is a failure.

    One test at a time, also among parallel workers: each removes the leftovers of dead labs.
    """
    if lacking := support.missing():
        reason = f"a lab network needs {'; '.join(lacking)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with (Path(tempfile.gettempdir()) / "ddpexec-netlab-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
