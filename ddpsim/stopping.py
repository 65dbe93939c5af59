"""Signals that end a command, as an exception that unwinds it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """Raised where a signal asked this process to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)

    def __str__(self) -> str:
        return signal.Signals(self.number).name


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Stopped` within the block."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    with _handling(stop):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore the same signals within the block."""
    with _handling(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handling(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)
