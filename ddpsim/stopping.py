"""Signals that end a command, as an exception that unwinds it."""

from __future__ import annotations

import contextlib
import os
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


INTERRUPTED = 130
"""Exit code of a command that SIGINT ends."""


def end_on_interrupt() -> None:
    """Have SIGINT end this process with one line, while a command's modules are imported and after it is done.

    An interrupt that is raised in the middle of an import is a traceback, or an error of whatever is imported.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        os.write(2, b"error: interrupted\n")
        os._exit(INTERRUPTED)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)


class Interrupts:
    """Whether SIGINT has come; what is raised for it may come out as another error, of a library that it passed."""

    def __init__(self) -> None:
        self.came = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Raise `Stopped` for SIGINT within the block, and note it; one that is ignored stays so."""

        def note(number: int, _frame: FrameType | None) -> None:
            self.came = True
            raise Stopped(number)

        main = threading.current_thread() is threading.main_thread()
        previous = signal.getsignal(signal.SIGINT) if main else None
        if previous in (None, signal.SIG_IGN):
            yield
            return
        signal.signal(signal.SIGINT, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)


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
