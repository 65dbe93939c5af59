from __future__ import annotations

import os

import pytest

from ddpexec.netlab import support


@pytest.fixture
def lab_machine() -> None:
    """Skip where this machine cannot have a lab network, with what it lacks; in CI that is a failure."""
    if lacking := support.missing():
        reason = f"a lab network needs {'; '.join(lacking)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
