"""What all tests share: imports done once, and no test fails because a machine is slow at that moment."""

from __future__ import annotations

import gc
import importlib
import sys

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_collection_finish() -> None:
    """Import here what torch's DDP imports when it is first made: seconds, in each rank that a test forks otherwise.

    What imports and collection made is kept out of garbage collections: hundreds of thousands of objects each time.
    """
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()
