"""Processes that share a command's work, as many as this machine has processors for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import current_process, get_context

FEW = 4
"""Pieces of work from which on another process is worth its start."""


@contextmanager
def processes(pieces: int) -> Iterator[Executor | None]:
    """Yield an executor of several processes for `pieces` of work; None where one process does as well."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(available, pieces)
    if pieces < FEW or count < 2 or current_process().daemon:
        yield None
        return
    executor = ProcessPoolExecutor(count, mp_context=get_context("fork"))
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)
