"""Waits that end: for works and futures, and for calls that may never return, as of a store whose keeper is stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Result = TypeVar("Result")


def in_thread(call: Callable[[], Result], name: str | None = None) -> Future[Result]:
    """Make `call` on a thread that nobody waits for at the end; return what has its result, or what it raised."""
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


def wait_within(handle: Any, timeout: timedelta | None) -> Any:
    """Wait for a work or a future of torch's, at most for `timeout`; return what its `wait` returns.

    A backend's own timeout counts from where it takes a message up. It takes up none while all its threads are in
    callbacks that wait for others, as in those of torch's PowerSGD over gloo.

    Raises:
        DistBackendError: a future had no value in time. Of a work the backend raises its own error.
    """
    if timeout is None:
        return handle.wait()
    if not isinstance(handle, torch._C.Future):
        return handle.wait(timeout)
    if not is_done_within(handle, timeout):
        raise dist.DistBackendError(f"timed out: a future had no value within {timeout.total_seconds():g} s")
    return handle.wait()


def is_done_within(future: Any, timeout: timedelta) -> bool:
    """Wait for a future of torch's, at most for `timeout`; return whether it has a value, or an error."""
    if future.done():
        return True
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())
    return ended.wait(timeout.total_seconds())
