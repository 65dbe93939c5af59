"""Where tests run: on the GPU, and the same test on the CPU, which shows that all of it but the GPU works."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.gpu.places import CPU, GPU, NO_GPU, Place  # noqa: E402


@pytest.fixture
def gpu() -> Place:
    """The first GPU; skips where there is none."""
    if torch.cuda.device_count() == 0:
        pytest.skip(NO_GPU)
    return GPU


@pytest.fixture(params=[GPU, CPU], ids=lambda place: place.device)
def place(request: pytest.FixtureRequest) -> Place:
    """The first GPU, and the CPU."""
    if request.param == GPU and torch.cuda.device_count() == 0:
        pytest.skip(NO_GPU)
    return request.param
