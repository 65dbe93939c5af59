"""A test that leaves something behind in its process fails by its name, and the next finds nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import leftovers

ROOT = Path(__file__).parents[1]
LEAVING = """
import os
def test_that_leaves(): os.environ["LEFT_BEHIND"] = "1"
def test_next(): assert "LEFT_BEHIND" not in os.environ
"""


def test_a_test_that_leaves_something_behind_fails_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "test_made.py").write_text(LEAVING)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "test_made.py::test_that_leaves leaves behind environment variables: LEFT_BEHIND" in done.stdout
    assert "2 passed, 1 error" in done.stdout


@pytest.mark.parametrize(
    ("leave", "named"),
    [
        (lambda: os.environ.update(LEFT_BEHIND="1"), "environment variables: LEFT_BEHIND"),
        (lambda: os.environ.pop("PATH"), "environment variables: PATH"),
        (lambda: os.chdir("/"), "another working directory"),
        (lambda: setattr(time, "sleep", print), "a clock of its own"),
        (lambda: sys.setprofile(lambda *_: None), "a profiling function"),
    ],
)
def test_what_is_left_behind_is_named_and_put_back(leave: Callable[[], object], named: str) -> None:
    before = leftovers.state()
    leave()
    assert leftovers.found(before) == [named]
    assert leftovers.found(before) == []
