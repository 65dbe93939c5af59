"""A processor that works, slower at times, and a stream of work on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from enum import Enum, auto
from heapq import heappush
from typing import Any

import simpy
from simpy.events import NORMAL

from ddpsim.operations import Operation
from ddpsim.simulation.beside import NOTHING, Beside, Share

Process = Generator[simpy.Event, Any, None]

Note = Callable[[float], None]
"""What is told a moment."""


class Processor:
    """Executes seconds of work; slower while collectives run beside it.

    Args:
        env: the simulation.
        beside: what collectives in flight cost the time of work.
        copy_slowdown: the same of what the host does for DDP: hooks, copies, launches.

    Attributes:
        busy: whether it works, other than for DDP.
        on_busy: called with True when work begins and with False when it ends.
    """

    def __init__(
        self, env: simpy.Environment, beside: Beside, on_busy: Callable[[bool], None], copy_slowdown: float = 1.0
    ) -> None:
        self.env = env
        self._beside = beside
        self._factor = 1.0
        self._taken: list[Share] = []
        self._copy_slowdown = copy_slowdown
        self._on_busy = on_busy
        self._timer: simpy.Event | None = None
        self.busy = False

    def collective_begins(self, size_bytes: int, operation: str = Operation.ALLREDUCE, lane: int = 0) -> None:
        """Count one more collective in flight on this rank, a message of `size_bytes`."""
        self._taken.append(self._beside.taken(size_bytes, operation, lane))
        self._change_speed()

    def collective_ends(self, size_bytes: int, operation: str = Operation.ALLREDUCE, lane: int = 0) -> None:
        """Count the collective of a message of `size_bytes` no more."""
        self._taken.remove(self._beside.taken(size_bytes, operation, lane))
        self._change_speed()

    def work(self, seconds: float, notes: Sequence[tuple[float, Note]] = ()) -> Process:
        """Work for `seconds` of undisturbed time; a process yields from this.

        Args:
            notes: what is told the moment at which so many of the seconds are done, in order; it is told some time
                after that, and before the work ends.
        """
        if seconds <= 0:
            return
        self.busy = True
        self._on_busy(True)
        done, told = 0.0, 0
        while done < seconds:
            factor, begin = self._factor, self.env.now
            timer = self._timer = self.env.timeout((seconds - done) * factor)
            yield timer
            reached = seconds if timer.processed else done + (self.env.now - begin) / factor
            while told < len(notes) and notes[told][0] <= reached:
                at, note = notes[told]
                note(begin + (at - done) * factor)
                told += 1
            done = reached
        self.busy = False
        self._on_busy(False)

    def serve(self, seconds: float, *, lasting: bool = False) -> Process:
        """Work for DDP on the host: `seconds` with no collective in flight when it begins.

        Args:
            lasting: whether such work follows such work, so that collectives in flight feel it; behind a single hook
                socket buffers keep the wire busy.
        """
        if seconds <= 0:
            return
        if lasting:
            self._on_busy(True)
        yield self.env.timeout(seconds * (self._copy_slowdown if self._taken else 1.0))
        if lasting:
            self._on_busy(False)

    def _change_speed(self) -> None:
        factor = self._beside.factor(sum(self._taken, NOTHING)) if self._taken else 1.0
        if factor != self._factor:
            self._factor = factor
            if self._timer is not None and self._timer.callbacks:
                # What waits for the end of its work goes on now, with the rest of it; the timer then wakes nobody.
                changed = self.env.event()
                changed.callbacks, self._timer.callbacks = self._timer.callbacks, []
                changed.succeed()


class _Kind(Enum):
    """A kind of entry in a stream's queue; what it carries is in brackets."""

    WORK = auto()  # (seconds)
    NOTE = auto()  # (what is told)
    BAR = auto()  # (moment)
    WAIT = auto()  # (event, what is told how long)
    CARRY = auto()  # (what starts it and returns its end)
    CALL = auto()  # (function, its arguments)


class Stream:
    """A device's in-order queue: work, waits and marks, each when those before it are done and the host has queued it.

    Work that the host has queued already is done in one go, with the notes between.

    Attributes:
        host_s: the host's clock, at which it queues what comes next. The host runs ahead of the simulation until it
            waits for an event (`host_waits`).
        idle_s: grows while the stream has nothing to do or is not yet allowed to go on.
        waited_s: grows while it waits for a collective.
    """

    def __init__(self, env: simpy.Environment, processor: Processor) -> None:
        self.env = env
        self.host_s = env.now
        self.idle_s = 0.0
        self.waited_s = 0.0
        self._processor = processor
        self._queue: deque[tuple[float, _Kind, Any]] = deque()
        self._kick: simpy.Event | None = None
        env.process(self._run())

    def work(self, seconds: float) -> None:
        """Queue `seconds` of work."""
        if seconds > 0:
            self._put(_Kind.WORK, seconds)

    def not_before(self, moment_s: float) -> None:
        """Queue a bar: what follows does not begin before `moment_s`."""
        self._put(_Kind.BAR, moment_s)

    def wait(self, event: simpy.Event, note: Note | None = None) -> None:
        """Queue a wait for a collective's `event`; `note` is told how long it was."""
        self._put(_Kind.WAIT, (event, note))

    def carry(self, start: Callable[[], simpy.Event]) -> None:
        """Queue something that another engine of the device does: `start` begins it and returns its end."""
        self._put(_Kind.CARRY, start)

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Queue a call at the moment the stream gets there."""
        self._put(_Kind.CALL, (function, arguments))

    def note(self, note: Note) -> None:
        """Queue a note, which is told the moment the stream gets there: at that moment, or some time after it."""
        self._put(_Kind.NOTE, note)

    def mark(self) -> simpy.Event:
        """Return an event that succeeds, with the time as its value, when the stream gets there."""
        event = self.env.event()
        self._put(_Kind.CALL, (self._succeed, (event,)))
        return event

    def host_waits(self, event: simpy.Event) -> Process:
        """Let the host wait for `event`; it goes on then, or when it gets there."""
        yield event
        self.host_s = max(self.host_s, self.env.now)

    def _put(self, kind: _Kind, carried: Any) -> None:
        self._queue.append((self.host_s, kind, carried))
        if self._kick is not None:
            self._kick.succeed()
            self._kick = None

    def _run(self) -> Process:
        env, queue = self.env, self._queue
        while True:
            begin = env.now
            while not queue:
                self._kick = env.event()
                yield self._kick
            queued_s, kind, carried = queue.popleft()
            if queued_s > env.now:
                yield _moment(env, queued_s)
            now = env.now
            self.idle_s += now - begin
            if kind is _Kind.WORK:
                yield from self._processor.work(*self._queued_work(carried, now))
            elif kind is _Kind.NOTE:
                carried(now)
            elif kind is _Kind.CALL:
                function, arguments = carried
                function(*arguments)
            elif kind is _Kind.WAIT:
                yield from self._wait(*carried)
            elif kind is _Kind.CARRY:
                yield carried()
            elif carried > now:
                self.idle_s += carried - now
                yield env.timeout(carried - now)

    def _queued_work(self, seconds: float, now_s: float) -> tuple[float, list[tuple[float, Note]]]:
        """Return the work that nothing holds up any more, `seconds` first, and after how much of it each note comes."""
        queue, notes = self._queue, []
        while queue and queue[0][0] <= now_s:
            _, kind, carried = queue[0]
            if kind is _Kind.WORK:
                seconds += carried
            elif kind is _Kind.NOTE:
                notes.append((seconds, carried))
            elif kind is not _Kind.BAR or carried > now_s:
                break
            queue.popleft()
        return seconds, notes

    def _wait(self, event: simpy.Event, note: Note | None) -> Process:
        begin = self.env.now
        if not event.processed:
            yield event
        waited = self.env.now - begin
        self.waited_s += waited
        if note is not None:
            note(waited)

    def _succeed(self, event: simpy.Event) -> None:
        event.succeed(self.env.now)


def _moment(env: simpy.Environment, moment_s: float) -> simpy.Event:
    """Return an event at exactly `moment_s`, which no sum of now and a delay may be."""
    event = env.event()
    event._ok, event._value = True, None
    heappush(env._queue, (moment_s, NORMAL, next(env._eid), event))
    return event
