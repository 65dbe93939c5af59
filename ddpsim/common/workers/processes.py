"""`Processes`: a pool of processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import Any

_LOOKS_S = 1.0
"""Seconds between two looks of a process at whether the one that started it is still there."""


class Processes:
    """`count` processes forked from this one; they end with it, however it ends.

    Signals of the terminal reach them too, and are left to the process that started them.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._start()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Return the future of one call; of a broken pool, a future with that error, as a lost worker's has."""
        try:
            return self._pool.submit(function, *arguments)
        except BrokenExecutor as error:
            broken: Future[Any] = Future()
            broken.set_exception(error)
            return broken

    def is_lost(self, error: BaseException) -> bool:
        """Whether the pool is broken, which one process that dies is enough for."""
        return isinstance(error, BrokenExecutor)

    def convert_error(self, error: BaseException) -> BaseException:
        """Return the error as it is."""
        return error

    def check(self) -> None:
        """Do nothing: the futures of a process that ends raise."""

    def renew(self) -> bool:
        """Start as many processes anew."""
        self.dismiss()
        self._start()
        return True

    def dismiss(self) -> None:
        """End every process, in the middle of a point too."""
        for process in set(multiprocessing.active_children()) - self._others:
            process.kill()
        self._pool.shutdown(cancel_futures=True)

    def _start(self) -> None:
        self._others = set(multiprocessing.active_children())
        context = multiprocessing.get_context("fork")
        self._pool = ProcessPoolExecutor(self.count, context, initializer=_begin, initargs=(os.getpid(),))


def _begin(parent: int) -> None:
    """Leave the terminal's signals to the parent, and end when it is gone."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOKS_S)
    os._exit(1)
