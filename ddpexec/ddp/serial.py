"""Functions for several threads, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable


def serial(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` so that a thread that calls it waits for another that has; one may call it within itself."""
    lock = threading.RLock()

    def one_at_a_time(*arguments: object) -> None:
        with lock:
            function(*arguments)

    return one_at_a_time
