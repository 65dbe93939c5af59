"""Calls on daemon threads, with a limit for calls that may never return, as to a store whose process is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

Result = TypeVar("Result")


def in_thread(call: Callable[[], Result], name: str | None = None) -> Future[Result]:
    """Run `call` on a daemon thread; return a future of its result or of what it raised."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


def call_within(seconds: float, call: Callable[[], Any], what: str) -> Any:
    """Return what `call` returns, or raise what it raises; it runs on a thread, which is left behind where it hangs.

    Raises:
        TimeoutError: it has not returned within `seconds`; `what` is named.
    """
    future = in_thread(call)
    if not wait([future], seconds).done:
        raise TimeoutError(f"{what} did not return within {seconds:g} s")
    return future.result()
