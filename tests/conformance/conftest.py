"""Puts the class under test in torch's place before torch's tests are imported; does nothing outside `run.py`."""

from __future__ import annotations

import os

import pytest

UNDER_TEST = os.environ.get("DDP_CLASS")

if UNDER_TEST is not None:
    from substitute import substitute

    substitute(UNDER_TEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep those of torch's tests that `run.py` names."""
    if UNDER_TEST is not None:
        named = set(os.environ["DDP_TESTS"].split())
        items[:] = [item for item in items if item.name in named]


def pytest_collection_finish() -> None:
    if UNDER_TEST is not None:
        from cuda_as_cpu import cuda_as_cpu

        cuda_as_cpu()


@pytest.fixture(autouse=True)
def _nothing_left() -> None:
    """In place of what fails a test for it: torch's set variables for their ranks, and leave them."""
