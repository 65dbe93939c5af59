"""Iterations of a loop stamped into an observer's notes, and steps counted, as a loop's hooks tell of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ddpexec.timing.observe import Note, Observer
from ddpexec.tracing.loop import LoopStamps
from ddpexec.tracing.settings import TraceSettings
from ddpexec.tracing.traced import TracedModule


@dataclass(slots=True)
class _Open:
    """What has happened since the last forward began."""

    backward: bool = False
    stepped: bool = False
    loaded: bool = False
    optimizer_end_s: float | None = None


class Iterations(LoopStamps):
    """Stamps the iterations of one subject, those of the steps that settings name.

    An iteration is from one start of forward to the next; several forwards before one backward are one. A step ends
    with the optimizer's; in a loop without one that torch knows, with a backward that reduces.

    Args:
        subject: whose hooks stamp.
        observer: takes the moments.
        settings: which steps are stamped.
        told: called at each forward: is it the first of a step?

    Attributes:
        closed: notes of stamped iterations that are over.
        step: number of the step that the present iteration is of, from 0 on.
        index: number of the present iteration.
        step_s: host seconds of the step that ended last.
        stamping: whether the present step is stamped.
    """

    def __init__(
        self, subject: TracedModule, observer: Observer, settings: TraceSettings, told: Callable[[bool], None]
    ) -> None:
        super().__init__(observer)
        self._subject, self._settings, self._told = subject, settings, told
        self.closed: list[Note] = observer.notes
        self.step, self.index = -1, -1
        self.step_s = 0.0
        self.stamping = False
        self._open = _Open(backward=True, stepped=True)
        self._optimizer_seen = self._synced = False
        self._step_began_s = 0.0

    def on_forward(self) -> None:
        """Forward begins."""
        self._told(self._begin())

    def _begin(self) -> bool:
        """Begin an iteration where one is over; return whether it is the first of a step."""
        if not self._open.backward:
            return False
        begin_s, former = time.perf_counter(), self._open
        first = former.stepped or (self._synced and not self._optimizer_seen)
        self._close_step(begin_s, first)
        self.index += 1
        self._open, self._synced = _Open(), self._subject.is_synced()
        if first:
            self.stamping = self._settings.is_stamped(self.step)
        if self.stamping:
            self._subject.attach()
            self._observer.begin(self.index, synced=self._synced, stepped=False)
            self._subject.begin()
        else:
            self._observer.close()
            self._subject.detach()
        return first

    def on_backward_end(self) -> None:
        """Backward is over."""
        self._open.backward = True
        super().on_backward_end()

    def on_optimizer_end(self, inside: bool) -> None:
        """An optimizer's step is over."""
        self._optimizer_seen = self._open.stepped = True
        self._open.optimizer_end_s = time.perf_counter()
        if self._observer.note is not None:
            self._observer.note.stepped = True
        super().on_optimizer_end(inside)

    def on_input(self, begin_s: float, end_s: float) -> None:
        """A batch was waited for."""
        self._open.loaded = True
        if self._observer.note is not None:
            self._observer.note.inputs.append((begin_s, end_s))

    def end(self) -> None:
        """The loop is over: its last iteration ends where its optimizer, or its backward, did."""
        note = self._observer.note
        if note is not None:
            complete = note.backward is not None
            ends = [pair[1] for pair in (note.backward, note.optimizer) if pair is not None]
            self._observer.close(ends[-1] if ends else None)
            if not complete:
                self.closed.pop()
        self._subject.detach()

    def _close_step(self, now_s: float, first: bool) -> None:
        note, former = self._observer.note, self._open
        if note is not None:
            note.stepped |= self._synced and not self._optimizer_seen
            if not former.loaded and former.optimizer_end_s is not None:
                note.inputs.append((former.optimizer_end_s, now_s))
        if first:
            self.step_s = now_s - self._step_began_s if self.step >= 0 else 0.0
            self._step_began_s = now_s
            self.step += 1
