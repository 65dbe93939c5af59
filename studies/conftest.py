"""What tests of the studies share with all tests."""

from __future__ import annotations

import pytest

from tests.conftest import pytest_collection_finish, pytest_configure

__all__ = ["pytest_collection_finish", "pytest_configure"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the pages, the longest cases: none is left alone at the end, when the other processor is idle."""
    items.sort(key=lambda item: "test_committed_pages" not in item.nodeid)
