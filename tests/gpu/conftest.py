"""Where tests run: on the GPU, and the same test on the CPU, which shows that all of it but the GPU works."""

from __future__ import annotations

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.gpu.places import CPU, GPU, NO_GPU, Place  # noqa: E402


@pytest.fixture
def gpu() -> Iterator[Place]:
    """The first GPU; skips where there is none."""
    with _held(GPU):
        yield GPU


@pytest.fixture(params=[GPU, CPU], ids=lambda place: place.device)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The first GPU, and the CPU."""
    with _held(request.param):
        yield request.param


@contextlib.contextmanager
def _held(place: Place) -> Iterator[None]:
    """Keep the GPU for one test, as others may run in processes beside it."""
    if place == CPU:
        yield
        return
    if torch.cuda.device_count() == 0:
        pytest.skip(NO_GPU)
    with open(Path(tempfile.gettempdir()) / "ddpexec-tests-gpu.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
