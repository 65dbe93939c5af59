"""What all tests share: no test fails because a machine is slow at that moment."""

from __future__ import annotations

import gc

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_collection_finish() -> None:
    """Keep what imports and collection made out of garbage collections: hundreds of thousands of objects each time."""
    gc.collect()
    gc.freeze()
