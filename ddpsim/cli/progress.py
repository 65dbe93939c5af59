"""How far a command has come, on standard error: one line of a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
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

    def __post_init__(self) -> None:
        self._shown_s = self.clock()

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done, where enough time has passed since this was last shown."""
        terminal = sys.stderr.isatty()
        if done >= total:
            self._clear()
        elif self.clock() - self._shown_s >= (REDRAW_S if terminal else APART_S):
            self._shown_s, self._drawn = self.clock(), terminal
            line = f"{self.what}: {done} of {total}"
            print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._drawn:
            self._drawn = False
            print("\r\033[K", end="", file=sys.stderr, flush=True)
