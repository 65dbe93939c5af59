"""Where ranks meet: process groups, their streams, and collectives that start when the last rank arrives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import simpy

from ddpsim.simulation.processor import Process, Processor

Operation = Literal["allreduce", "broadcast"]


@dataclass(slots=True)
class Launch:
    """One rank's part in one collective; times are None until they happened.

    Attributes:
        number: the collective's place in the order of launches, equal on all ranks.
        size_bytes: message size.
        operation: what is done with the message.
        group: number of the process group it was launched on.
        after: event on this rank's device before which its stream cannot begin; None where data are ready at launch.
        done: succeeds when the collective has ended on this rank.
    """

    number: int
    size_bytes: int
    operation: Operation
    group: int
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
        transfers: by operation, what starts the bytes of a message of given size in a process group of given number
            and returns the event of their end.
    """

    def __init__(
        self, env: simpy.Environment, ranks: int, transfers: Mapping[Operation, Callable[[int, int], simpy.Event]]
    ) -> None:
        self._env = env
        self._ranks = ranks
        self._transfers = transfers
        self._meetings: dict[int, _Meeting] = {}

    def attend(self, launch: Launch) -> simpy.Event:
        """Bring one rank's launch and return the event of the collective's end."""
        meeting = self._meetings.setdefault(launch.number, _Meeting(self._env.event()))
        meeting.launches.append(launch)
        if len(meeting.launches) == self._ranks:
            for each in meeting.launches:
                each.wire_s = self._env.now
            del self._meetings[launch.number]
            _chain(self._transfers[launch.operation](launch.size_bytes, launch.group), meeting.finished)
        return meeting.finished


class SimulatedCommunicator:
    """One rank's process groups, launched round-robin; each keeps `streams_per_group` collectives in flight, in order.

    Args:
        env: the simulation.
        meetings: common to all ranks; None ends each collective at once (`comm=noop`).
        groups: process groups.
        streams_per_group: NCCL 1, gloo 2.
        processor: slowed while a collective of this rank is in flight.
        late_s: how long a collective waits for multiprocessors where the rank computes when it could begin.
    """

    def __init__(
        self,
        env: simpy.Environment,
        meetings: Meetings | None,
        groups: int,
        streams_per_group: int,
        processor: Processor,
        late_s: float = 0.0,
    ) -> None:
        self.env = env
        self._meetings = meetings
        self._processor = processor
        self._launched = 0
        self._late_s = late_s
        self._queues = [simpy.Store(env) for _ in range(groups)]
        for queue in self._queues:
            for _ in range(streams_per_group):
                env.process(self._stream(queue))

    def launch(
        self,
        size_bytes: int,
        after: simpy.Event | None = None,
        operation: Operation = "allreduce",
        launched_s: float | None = None,
    ) -> Launch:
        """Launch a collective now; it begins when its stream is free and `after` has happened.

        Args:
            launched_s: when its host launches it, where that is later than now; `after` must not come before it.
        """
        group = self._launched % len(self._queues)
        launched_s = self.env.now if launched_s is None else launched_s
        launch = Launch(self._launched, size_bytes, operation, group, after, self.env.event(), launched_s)
        self._queues[group].put(launch)
        self._launched += 1
        return launch

    def _stream(self, queue: simpy.Store) -> Process:
        while True:
            launch: Launch = yield queue.get()
            if launch.after is not None and not launch.after.processed:
                yield launch.after
            if self._late_s > 0 and self._processor.busy:
                yield self.env.timeout(self._late_s)
            launch.started_s = self.env.now
            self._processor.collective_begins(launch.size_bytes)
            if self._meetings is not None:
                yield self._meetings.attend(launch)
            self._processor.collective_ends(launch.size_bytes)
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
