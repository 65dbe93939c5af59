"""Waits with a limit for torch's works and futures, so that no rank hangs because another is gone."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


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
