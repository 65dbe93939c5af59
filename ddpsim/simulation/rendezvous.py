"""Where ranks meet: process groups, their streams, and collectives that start when the last rank arrives."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import simpy

from ddpsim.operations import Operation
from ddpsim.simulation.processor import Process, Processor

BUFFERS: Literal["buffers"] = "buffers"
"""DDP's broadcast of rank 0's buffers, which has a cost of its own."""

Collective = Operation | Literal["buffers"]


@dataclass(slots=True, eq=False)
class Launch:
    """One rank's part in one collective; times are None until they happened.

    Attributes:
        number: the collective's place in the order of launches of its lane, equal on all ranks.
        size_bytes: message size.
        operation: what is done with the message.
        lane: number of the process group, or group and stream, it was launched on.
        after: event on this rank's device before which its stream cannot begin; None where data are ready at launch.
        done: succeeds when the collective has ended on this rank.
    """

    number: int
    size_bytes: int
    operation: Collective
    lane: int
    after: simpy.Event | None
    done: simpy.Event
    launched_s: float
    started_s: float | None = None
    wire_s: float | None = None
    finished_s: float | None = None


@dataclass(slots=True)
class _Meeting:
    finished: simpy.Event
    launches: list[Launch] = field(default_factory=list)


class Meetings:
    """Collectives of the whole job: the wire moves when every simulated rank has arrived.

    Args:
        env: the simulation.
        ranks: number of simulated ranks.
        transfer: starts the bytes of a launch and returns the event of their end.
    """

    def __init__(self, env: simpy.Environment, ranks: int, transfer: Callable[[Launch], simpy.Event]) -> None:
        self._env = env
        self._ranks = ranks
        self._transfer = transfer
        self._meetings: dict[tuple[int, int], _Meeting] = {}

    def attend(self, launch: Launch) -> simpy.Event:
        """Bring one rank's launch and return the event of the collective's end."""
        where = (launch.lane, launch.number)
        meeting = self._meetings.setdefault(where, _Meeting(self._env.event()))
        meeting.launches.append(launch)
        if len(meeting.launches) == self._ranks:
            for each in meeting.launches:
                each.wire_s = self._env.now
            del self._meetings[where]
            _chain(self._transfer(launch), meeting.finished)
        return meeting.finished


class Attends(Protocol):
    """Brings a rank's launches to where their bytes move."""

    def attend(self, launch: Launch) -> simpy.Event:
        """Bring one launch and return the event of its end."""


class _Queue:
    """A lane's launches, taken in order by the streams that ask."""

    __slots__ = ("_env", "_launches", "_waiting")

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._launches: deque[Launch] = deque()
        self._waiting: deque[simpy.Event] = deque()

    def put(self, launch: Launch) -> None:
        """Give `launch` to the stream that has waited longest, or keep it."""
        if self._waiting:
            self._waiting.popleft().succeed(launch)
        else:
            self._launches.append(launch)

    def get(self) -> simpy.Event:
        """Return an event that succeeds with the next launch."""
        event = self._env.event()
        if self._launches:
            event.succeed(self._launches.popleft())
        else:
            self._waiting.append(event)
        return event


class SimulatedCommunicator:
    """One rank's lanes, each of which keeps `streams_per_group` collectives in flight, in order.

    A lane is a process group, and of a schedule a group and a stream; DDP's process groups take turns.

    Args:
        env: the simulation.
        meetings: common to all ranks, or this rank's own where it meets no others; None ends each collective at once
            (`comm=noop`).
        lanes: how many there are.
        streams_per_group: NCCL 1, gloo 2.
        processor: slowed while a collective of this rank is in flight.
        late_s: how long a collective waits for multiprocessors where the rank computes when it could begin.
    """

    def __init__(
        self,
        env: simpy.Environment,
        meetings: Attends | None,
        lanes: int,
        streams_per_group: int,
        processor: Processor,
        late_s: float = 0.0,
    ) -> None:
        self.env = env
        self._meetings = meetings
        self._processor = processor
        self._launched = [0] * lanes
        self._turn = 0
        self._late_s = late_s
        self._queues = [_Queue(env) for _ in range(lanes)]
        for queue in self._queues:
            for _ in range(streams_per_group):
                env.process(self._stream(queue))

    def launch(
        self,
        size_bytes: int,
        after: simpy.Event | None = None,
        operation: Collective = Operation.ALLREDUCE,
        lane: int | None = None,
        launched_s: float | None = None,
    ) -> Launch:
        """Launch a collective now; it begins when its stream is free and `after` has happened.

        Args:
            lane: its number; None is the one whose turn it is.
            launched_s: when its host launches it, where that is later than now; `after` must not come before it.
        """
        if lane is None:
            lane, self._turn = self._turn, (self._turn + 1) % len(self._queues)
        launched_s = self.env.now if launched_s is None else launched_s
        launch = Launch(self._launched[lane], size_bytes, operation, lane, after, self.env.event(), launched_s)
        self._queues[lane].put(launch)
        self._launched[lane] += 1
        return launch

    def _stream(self, queue: _Queue) -> Process:
        while True:
            launch: Launch = yield queue.get()
            if launch.after is not None and not launch.after.processed:
                yield launch.after
            if self._late_s > 0 and self._processor.busy:
                yield self.env.timeout(self._late_s)
            launch.started_s = self.env.now
            self._processor.collective_begins(launch.size_bytes, launch.operation, launch.lane)
            if self._meetings is not None:
                yield self._meetings.attend(launch)
            self._processor.collective_ends(launch.size_bytes, launch.operation, launch.lane)
            launch.finished_s = self.env.now
            launch.wire_s = launch.finished_s if launch.wire_s is None else launch.wire_s
            launch.done.succeed(self.env.now)


def _succeed(event: simpy.Event) -> None:
    event.succeed()


def _chain(first: simpy.Event, then: simpy.Event) -> None:
    if first.processed:
        then.succeed()
    else:
        assert first.callbacks is not None
        first.callbacks.append(lambda _: _succeed(then))
