"""How far a command has come, on standard error: one line of a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

REDRAW_S = 0.2
"""Seconds between two states of a terminal's line."""

APART_S = 10.0
"""Seconds before the first line, and between two lines, where standard error is no terminal."""


@dataclass(slots=True)
class Progress:
    """Called with what is done and how much there is in all; what ends within a moment shows nothing.

    Attributes:
        what: is counted.
        clock: seconds from any moment on.
    """

    what: str
    clock: Callable[[], float] = time.monotonic
    _shown_s: float = field(init=False)
    _drawn: bool = field(init=False, default=False)
    _printed: bool = field(init=False, default=False)
    _first: int = field(init=False, default=0)
    _before: int | None = field(init=False, default=None)
    _since_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._shown_s = self.clock()
        self._since_s = self._shown_s

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done, where enough time has passed since this was last shown."""
        terminal, now_s = sys.stderr.isatty(), self.clock()
        if self._before is None or done < self._before:
            self._first, self._since_s = done, now_s
        self._before = done
        if done >= total:
            self._end(total)
        elif now_s - self._shown_s >= (REDRAW_S if terminal else APART_S):
            self._shown_s, self._drawn, self._printed = now_s, terminal, not terminal
            if terminal:
                _erase()
            line = f"{self.what}: {done} of {total}{self._estimate_left(done, total)}"
            print(line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def _estimate_left(self, done: int, total: int) -> str:
        """Return how long the rest takes at the pace since the first call: what was done before says nothing of it."""
        fresh = done - self._first
        if fresh < 1:
            return ""
        return f", {duration((self.clock() - self._since_s) * (total - done) / fresh)} left"

    def _end(self, total: int) -> None:
        """Erase the terminal's line; elsewhere end the lines, where there were any, with the last."""
        if self._drawn:
            _erase()
        if self._printed:
            print(f"{self.what}: {total} of {total}", file=sys.stderr, flush=True)
        self._drawn = self._printed = False


@contextmanager
def shown(message: str) -> Iterator[None]:
    """Show what a command is at, where it cannot say how far, on one line of a terminal; elsewhere nothing."""
    show(message)
    try:
        yield
    finally:
        show("")


def show(message: str) -> None:
    """Show `message` on one line of a terminal, in place of the one before."""
    if sys.stderr.isatty():
        _erase()
        print(message, end="", file=sys.stderr, flush=True)


def _erase() -> None:
    """Erase the terminal's line; a guarded stream would show the sequence that does, so it is drawn."""
    getattr(sys.stderr, "draw", sys.stderr.write)("\r\033[K")
    sys.stderr.flush()


def duration(seconds: float) -> str:
    """Return seconds as people tell them, to two figures that matter.

    >>> duration(42.3), duration(150), duration(3 * 3600 + 240)
    ('42 s', '2 min 30 s', '3 h 04 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
