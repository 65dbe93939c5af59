"""torchrun's SIGTERM, sent when another rank has failed, as an exception, so that what broke off is traced."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def terminated_as_error(release: Callable[[], object]) -> Iterator[None]:
    """Raise SystemExit within for SIGTERM.

    Args:
        release: called at once, on a thread: the main one hears of a signal only when no call into torch holds it.
    """

    def terminated(number: int, _: object) -> NoReturn:
        raise SystemExit(2)

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        with _heard_by_a_thread(release):
            yield
    finally:
        # Where training broke off, SIGTERM stays ignored: this rank ends by itself, with its own exit code.
        if signal.getsignal(signal.SIGTERM) is terminated:
            signal.signal(signal.SIGTERM, before)


def ignore_termination() -> None:
    """Ignore SIGTERM from now on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextmanager
def _heard_by_a_thread(release: Callable[[], object]) -> Iterator[None]:
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
