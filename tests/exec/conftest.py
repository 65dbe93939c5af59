"""Fixtures of the tests that need torch."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator

import pytest


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A gloo process group of this process alone, and one thread."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    time.sleep(0.02)  # lets gloo's threads drop what callbacks held, a reference to the group perhaps
    torch.distributed.destroy_process_group()
    torch.set_num_threads(threads)
