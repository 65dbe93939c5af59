"""When forward uses parameters of a module under a schedule, as a tuner stamps it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ddpexec.ddp.hooks import ForwardPoints
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.timing.clock import Moment
from ddpexec.timing.observe import Note
from ddpexec.tuning.observed import Seconds


class ForwardUseStamps:
    """Takes when forward first uses each parameter, while a tuner stamps steps.

    Args:
        module: that is wrapped.
        model: its parameters.
        now: the clock's moment.
    """

    def __init__(self, module: Any, model: ModelParameters, now: Callable[[], Moment]) -> None:
        self._now, self._count = now, len(model.tensors)
        self._uses: dict[int, dict[int, Moment]] = {}
        self._latest: dict[int, Moment] = {}
        self._points: ForwardPoints | None = ForwardPoints(module, model, self._announce)

    def begin(self, note: Note) -> None:
        """The forward of a stamped iteration begins."""
        self._latest = self._uses[id(note)] = {}
        if self._points is not None:
            self._announce(self._points.at_start)

    def end_forward(self) -> None:
        """It has returned."""
        if self._points is not None:
            self._points.learn()

    def end(self) -> None:
        """Take no more, and leave the module as it was."""
        if self._points is not None:
            self._points.remove()
            self._points = None

    def rows(self, notes: Sequence[Note], at: Callable[[Moment], float]) -> Seconds:
        """Return the seconds from the module's start until each use, a row a note; NaN where there is none."""
        found = np.full((len(notes), self._count), np.nan)
        for row, note in zip(found, notes, strict=True):
            start_s = at(note.module[0] if note.module is not None else note.start)
            for index, moment in self._uses[id(note)].items():
                row[index] = max(0.0, at(moment) - start_s)
        return found

    def _announce(self, indices: Sequence[int]) -> bool:
        if self._points is not None and indices:
            now = self._now()
            for index in indices:
                self._latest.setdefault(index, now)
        return False
