"""Signals that end a command, as an exception that unwinds it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_Handler = Callable[[int, FrameType | None], None]

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LATER_S = 0.01
"""Seconds after which a signal is sent again, chosen by hand: longer than `__del__` takes, shorter than is noticed."""


class Stopped(BaseException):
    """Raised where a signal asked this process to end."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(number)

    def __str__(self) -> str:
        return signal.Signals(self.number).name


class Interrupts:
    """Whether SIGINT has come; what is raised for it may come out as another error, of a library that it passed."""

    def __init__(self) -> None:
        self.came = False

    @contextlib.contextmanager
    def note_interrupts(self) -> Iterator[None]:
        """Raise `Stopped` for SIGINT within the block, and note it; one that is ignored stays so."""

        def note(number: int, frame: FrameType | None) -> None:
            self.came = True
            if _is_importing(frame):
                # What is imported in C clears errors that are not its own: raised there, this one is lost.
                os.write(2, b"error: interrupted\n")
                os._exit(128 + number)
            raise Stopped(number)

        main = threading.current_thread() is threading.main_thread()
        previous = signal.getsignal(signal.SIGINT) if main else None
        if previous in (None, signal.SIG_IGN):
            yield
            return
        signal.signal(signal.SIGINT, note)
        try:
            with _resend_signal(note):
                yield
        finally:
            signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into `Stopped` within the block."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    with _handle_signals(stop), _resend_signal(stop):
        yield


@contextlib.contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore the same signals within the block."""
    with _handle_signals(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handle_signals(handler: _Handler | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether `frame` runs within an import."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def _resend_signal(handler: _Handler) -> Iterator[None]:
    """Send a signal again for which `handler` raised `Stopped` where Python drops it: in `__del__`, around a fork."""
    former = sys.unraisablehook

    def again(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, Stopped):
            former(dropped)
            return
        number = dropped.exc_value.number
        while True:
            try:
                signal.signal(number, handler)
                later = threading.Timer(_LATER_S, os.kill, (os.getpid(), number))  # raised here it would be dropped too
                later.daemon = True
                later.start()
                return  # without a call: Python looks for signals at calls
            except Stopped:
                continue  # the timer was quicker than this thread, on a busy machine

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = former
