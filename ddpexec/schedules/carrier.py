"""From a schedule's messages to collectives on memory, and the wait for each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddpexec.groups.lost import naming_the_lost, raise_lost
from ddpexec.groups.process_groups import Communicator, FinishedWork, Work
from ddpexec.schedules.averaged import Rates, rates_of
from ddpexec.schedules.lanes import Lane, Lanes
from ddpexec.schedules.memory import Flat
from ddpexec.schedules.message_memory import MessageMemory
from ddpexec.schedules.rows import RowLane, RowServer
from ddpexec.schedules.served import ENDS, Server, ServerLane
from ddpexec.schedules.updates import MakeOptimizer
from ddpexec.timing.observe import BucketNote, Observer
from ddpsim.operations import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.schedule import Schedule, averages
from ddpsim.schedules.servers import SERVERS


@dataclass(slots=True)
class Flight:
    """A message on its way: its work, and what is noted of it."""

    message: Message
    work: Work
    note: BucketNote | None = None
    landed: bool = False


class Carrier:
    """Launches the messages of one schedule and waits for them.

    Args:
        schedule: checked.
        memory: that its messages carry.
        communicator: of the ranks.
        lanes: of the run.
        observer: takes the moments of each message; None takes none.

    Raises:
        OptionError: a message that cannot be carried out for real; it is named.
    """

    def __init__(
        self,
        schedule: Schedule,
        memory: MessageMemory,
        communicator: Communicator,
        lanes: Lanes,
        observer: Observer | None,
    ) -> None:
        self._memory, self._communicator, self._observer = memory, communicator, observer
        self._messages = {message.id: message for message in schedule}
        self.rates: Rates = rates_of([])
        rings = {message.stream for message in schedule if message.op is not Operation.ALLREDUCE or message.delay_s}
        self._lanes: dict[tuple[str, str], Lane | ServerLane] = {}
        for group, stream in dict.fromkeys((message.group, message.stream) for message in schedule):
            ranks = schedule.groups.get(group)
            if group == SERVERS:
                count = sum(message.stream == stream for message in schedule)
                made = lanes.of(stream, rings=False).group
                of_rows = any(message.sparse for message in schedule if message.stream == stream)
                kind = RowLane if of_rows else ServerLane
                self._lanes[group, stream] = kind(made, schedule.sharding.servers, count)
            else:
                self._lanes[group, stream] = lanes.of(stream, rings=stream in rings, ranks=ranks)
        self._numbers = {message.id: number for number, message in enumerate(schedule)}
        self._tensors = {message.id: memory.tensor(message) for message in schedule}
        self._flights: dict[str, Flight] = {}
        self.carried_bytes = 0

    def launch(self, messages: Iterable[Message]) -> None:
        """Begin messages, in order, each once the one of the same name before it has ended."""
        for message in messages:
            self.wait([message])
            if averages(message):
                self._memory.averaged_of(message).divide(self._communicator.world_size, self.rates)
            elif message.op.reduces and not message.sparse:
                flat = self._memory.flat_of(message)
                flat.complete(flat.summed_over)
                self._prepare(message)
            observer = self._observer
            begin = observer.now() if observer is not None else None
            flight = Flight(message, self._begin(message))
            self._flights[message.id] = flight
            self.carried_bytes += message.size_bytes
            if observer is not None:
                number = self._numbers[message.id]
                flight.note = observer.launched(
                    number, message.parameters, message.size_bytes, begin, flight.work, message.op
                )

    def _prepare(self, message: Message) -> None:
        """Take the norms of a bucket's chunks, or choose among the chunks by what they are summed over the ranks."""
        if message.chunks is None:
            return
        if message.chunks.phase == "norms":
            self._memory.chunked_of(message).measure()
        else:
            self.wait(self._messages[name] for name in message.after_messages)
            self._memory.chunked_of(message).choose()

    def wait(self, messages: Iterable[Message]) -> None:
        """Wait for messages that were launched, each once."""
        for message in messages:
            flight = self._flights.get(message.id)
            if flight is not None and not flight.landed:
                self._land(flight)

    def wait_all(self) -> None:
        """Wait for all messages that were launched."""
        for flight in self._flights.values():
            if not flight.landed:
                self._land(flight)

    def unfinished(self, flat: Flat) -> bool:
        """Whether a message of `flat` is on its way."""
        return any(not f.landed and f.message.parameters == flat.indices for f in self._flights.values())

    def _begin(self, message: Message) -> Work:
        if self._communicator.noop:
            return FinishedWork()
        before = [flight.work for name in message.after_messages if (flight := self._flights.get(name)) is not None]
        lane = self._lanes[message.group, message.stream]
        if isinstance(lane, ServerLane) and message.op.reduces:
            [lane.rate, *_] = self.rates([self._memory.parameters[index] for index in message.parameters])
        return lane.launch(message.op, self._tensors[message.id], before, message.delay_s)

    def _land(self, flight: Flight) -> None:
        observer, note = self._observer, flight.note
        begin = observer.now() if observer is not None else None
        try:
            flight.work.wait()
        except RuntimeError as error:
            message = flight.message
            raise_lost(self._communicator, f"the {message.op} {message.id!r} ({message.size_bytes:,} B)", error)
        flight.landed = True
        if averages(flight.message):
            self._memory.averaged_of(flight.message).landed()
        if flight.message.chunks is not None and flight.message.chunks.phase == "values":
            self._memory.chunked_of(flight.message).landed()
        if observer is not None and note is not None:
            observer.waited_for(note, begin)

    def server(self, schedule: Schedule, make_optimizer: MakeOptimizer) -> Server:
        """Return what this rank does where it serves."""
        push, pull = (self._lanes[SERVERS, stream] for stream in ("push", "pull"))
        pushes = [message for message in schedule if message.group == SERVERS and message.op.reduces]
        places = {message.id: place for place, message in enumerate(pushes)}
        pulls = [message for message in schedule if message.group == SERVERS and not message.op.reduces]
        order = [places[message.after_messages[0]] for message in pulls]
        servers = schedule.sharding.servers
        if any(message.sparse for message in pushes):
            rows = [self._memory.parameters[message.parameters[0]] for message in pushes]
            return RowServer(self._communicator, push.group, pull.group, rows, order, servers, make_optimizer)
        buckets = [self._memory.averaged_of(message).whole for message in pushes]
        return Server(self._communicator, push.group, pull.group, buckets, order, servers, make_optimizer)

    def end(self) -> None:
        """Tell servers, where there are any, that this rank trains no more."""
        for (group, stream), lane in self._lanes.items():
            if group == SERVERS and stream == "push" and isinstance(lane, ServerLane):
                with naming_the_lost(self._communicator, "the last message to the servers"):
                    lane.tell(ENDS)
