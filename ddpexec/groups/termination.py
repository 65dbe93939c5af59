"""torchrun's SIGTERM, sent when another rank has failed, as an exception, so that what broke off is traced."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ddpsim.common.errors import InputError


class Terminated(SystemExit):
    """Raised in the main thread when SIGTERM comes."""

    def __init__(self) -> None:
        super().__init__(2)


class Termination:
    """Whether SIGTERM has come; what is raised for it may come out as another error, of a library that it passed."""

    def __init__(self) -> None:
        self.came = False

    def find_cause(self, error: BaseException) -> BaseException:
        """Return `Terminated` where SIGTERM came before `error`, unless that says itself why this rank ends."""
        if not self.came or isinstance(error, InputError):
            return error
        return error if isinstance(error, Terminated) else Terminated()


@contextmanager
def raise_on_sigterm(release: Callable[[], object]) -> Iterator[Termination]:
    """Raise `Terminated` within for SIGTERM, once; elsewhere than on the main thread, do nothing.

    Args:
        release: called at once, on a thread: the main one hears of a signal only when no call into torch holds it.
    """
    termination = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return

    def heard() -> None:
        termination.came = True
        release()

    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        with _watch_by_thread(heard):
            yield termination
    finally:
        # Where training broke off, SIGTERM stays ignored: this rank ends by itself, with its own exit code.
        if signal.getsignal(signal.SIGTERM) is _raise_terminated:
            signal.signal(signal.SIGTERM, before)


def ignore_from_now_on() -> None:
    """Ignore SIGTERM where it would raise SystemExit: this rank has its own reason to end, and is about to tell it."""
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGTERM) is _raise_terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _raise_terminated(number: int, _: object) -> NoReturn:
    ignore_from_now_on()
    raise Terminated


@contextmanager
def _watch_by_thread(release: Callable[[], object]) -> Iterator[None]:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def listen() -> None:
        with os.fdopen(reading, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] == signal.SIGTERM:
                    release()

    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writing)
