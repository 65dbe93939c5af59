"""What one rank's iterations looked like: moments taken while it trains, made into `Iteration` records afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ddpexec.timing.clock import Clock, Moment
from ddpsim.common.operation import Operation

Pair = tuple[Moment, Moment]
"""Begin and end."""


@dataclass(slots=True)
class BucketNote:
    """Moments of one bucket; `finished` asks the clock, which may not know."""

    number: int
    indices: tuple[int, ...]
    size_bytes: int
    launched: Moment
    finished: Callable[[], Moment | None]
    waited: Pair | None = None
    written: Moment | None = None
    operation: Operation = Operation.ALLREDUCE


@dataclass(slots=True)
class Note:
    """Moments of one iteration; see `ddpsim.trace.records.Iteration` for what becomes of them.

    A schedule's `waits` are where this iteration waited for messages, whenever those were launched, its `updates` what
    the optimizer did between forward's layers; None where buckets alone are waited for, at the end of backward.
    `inputs` are host times, in seconds on `time.perf_counter`, in which the next batch was waited for; `loaded` is from
    its start until the batch of an iteration that begins with it was there.
    """

    index: int
    synced: bool
    start: Moment
    stepped: bool = True
    buffers: Pair | None = None
    module: Pair | None = None
    returned: Moment | None = None
    backward: Pair | None = None
    hooks: dict[int, Pair] = field(default_factory=dict)
    buckets: list[BucketNote] = field(default_factory=list)
    finish: Pair | None = None
    optimizer: Pair | None = None
    waits: list[Pair] | None = None
    updates: list[Pair] = field(default_factory=list)
    inputs: list[tuple[float, float]] = field(default_factory=list)
    loaded: Pair | None = None
    end: Moment | None = None


class Observer:
    """Takes the moments of one rank.

    `hooks` is written to for each gradient, directly, as that costs least; everything else happens a few times an
    iteration.

    Args:
        clock: of this rank's device.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock, self.now = clock, clock.now
        self.notes: list[Note] = []
        self.note: Note | None = None
        self.hooks: dict[int, Pair] = {}

    def begin(self, index: int, *, synced: bool, stepped: bool = True) -> Note:
        """Open an iteration at its start of forward, and so close the one before."""
        moment = self.now()
        self.close(moment)
        self.note = Note(index, synced, moment, stepped)
        self.hooks = self.note.hooks
        return self.note

    def close(self, moment: Moment | None = None) -> None:
        """Close the open iteration at `moment`, by default now."""
        if self.note is not None:
            self.note.end = self.now() if moment is None else moment
            self.notes.append(self.note)
            self.note, self.hooks = None, {}

    def buffers(self, begin: Moment) -> None:
        """Note a buffer broadcast that began at `begin` and ends now."""
        if self.note is not None:
            self.note.buffers = begin, self.now()

    def module(self, begin: Moment) -> None:
        """Note the wrapped module's forward, which began at `begin` and ends now."""
        if self.note is not None:
            self.note.module = begin, self.now()

    def note_launch(
        self,
        number: int,
        indices: tuple[int, ...],
        size_bytes: int,
        moment: Moment,
        work: Any,
        operation: Operation = Operation.ALLREDUCE,
    ) -> BucketNote | None:
        """Note that a bucket was handed to the backend at `moment`; return the note, where an iteration is open."""
        if self.note is None:
            return None
        finished = self.clock.watch(work, len(self.note.buckets))
        note = BucketNote(number, indices, size_bytes, moment, finished, operation=operation)
        self.note.buckets.append(note)
        return note

    def note_collective(
        self, number: int, indices: tuple[int, ...], size_bytes: int, begin: Moment, end: Moment, operation: Operation
    ) -> BucketNote | None:
        """Note a collective that was launched at `begin` and ended at `end`; return its note, where one is open."""
        if self.note is None:
            return None
        note = BucketNote(number, indices, size_bytes, begin, lambda: end, operation=operation)
        self.note.buckets.append(note)
        return note

    def note_schedule(self) -> None:
        """Note that messages are waited for one by one in the open iteration, not all at the end of its backward."""
        if self.note is not None:
            self.note.waits = []

    def note_message_wait(self, note: BucketNote, begin: Moment, end: Moment) -> None:
        """Note that this rank waited, from `begin` to `end`, for a message launched in this iteration or before."""
        note.waited, note.written = (begin, end), end
        if self.note is not None and self.note.waits is not None:
            self.note.waits.append((begin, end))

    def note_update(self, begin: Moment) -> None:
        """Note that the optimizer updated parameters in the midst of forward, from `begin` until now."""
        if self.note is not None:
            self.note.updates.append((begin, self.now()))

    def note_bucket_wait(self, position: int, begin: Moment) -> None:
        """Note that this rank waited, from `begin` until now, for the bucket launched as the `position`-th."""
        if self.note is not None and position < len(self.note.buckets):
            self.note.buckets[position].waited = begin, self.now()

    def note_written(self, position: int) -> None:
        """Note that the gradients of the bucket launched as the `position`-th can be used."""
        if self.note is not None and position < len(self.note.buckets):
            self.note.buckets[position].written = self.now()

    def note_backward_end(self, begin: Moment) -> None:
        """Note the end of backward, in which buckets are waited for, from `begin` until now."""
        if self.note is not None:
            self.note.finish = begin, self.now()


def note_backward(note: Note, begin: Moment, end: Moment) -> None:
    """Note backward, and with it the end of what stock torch does at its end."""
    note.backward = begin, end
    if note.finish is not None and note.finish[1] is None:
        note.finish = note.finish[0], end
