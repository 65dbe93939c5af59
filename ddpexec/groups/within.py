"""Calls that may never return, such as those of a store whose keeper is stopped, given up after a while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def call_within(seconds: float, call: Callable[[], Any], what: str) -> Any:
    """Return what `call` returns, or raise what it raises; it runs on a thread, which is left behind where it hangs.

    Raises:
        TimeoutError: it has not returned within `seconds`; `what` is named.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"{what} did not return within {seconds:g} s")
    return results[0]
