"""What tests of the studies share with all tests, and a folder of what their workers make once."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

from studies.session import FOLDER
from tests import conftest
from tests.conftest import pytest_collection_finish

__all__ = ["pytest_collection_finish"]
HELD = pytest.StashKey[str]()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Make the folder where the session is told, before its workers start, which find it in their environment."""
    conftest.pytest_configure(config)
    if not hasattr(config, "workerinput"):
        os.environ[FOLDER] = config.stash[HELD] = tempfile.mkdtemp(prefix="studies-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(HELD, None):
        os.environ.pop(FOLDER, None)
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the pages, the longest cases: none is left alone at the end, when the other processor is idle."""
    items.sort(key=lambda item: "test_committed_pages" not in item.nodeid)
