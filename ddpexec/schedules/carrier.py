"""From a schedule's messages to collectives on memory, and the wait for each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ddpexec.ddp.comm_hooks import Hook
from ddpexec.groups.lost import naming_the_lost, raise_lost
from ddpexec.groups.process_groups import Communicator, FinishedWork, Work
from ddpexec.schedules.averaged import AveragedParameters, Rates, rates_of
from ddpexec.schedules.hooked import HookStream, check_hookable
from ddpexec.schedules.lanes import CommunicationStream, CommunicationStreams
from ddpexec.schedules.message_memory import MessageMemory
from ddpexec.schedules.rows import RowServer, RowStream
from ddpexec.schedules.served import ENDS, Server, ServerStream
from ddpexec.schedules.updates import MakeOptimizer
from ddpexec.timing.observe import BucketNote, Observer
from ddpsim.operations import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.schedule import Schedule, averages
from ddpsim.schedules.servers import SERVERS


@dataclass(slots=True)
class MessageInFlight:
    """A message on its way: its work, and what is noted of it."""

    work: Work
    note: BucketNote | None


@dataclass(frozen=True, slots=True)
class PreparedMessage:
    """A prepared message is what its launch and its end do.

    Attributes:
        tensor: that is sent.
        lane: of its group and stream.
        after: numbers of the messages that must have ended before it begins.
        fill: puts into the tensor what is sent; None where it lies there.
        drain: takes what came out of it, once it has ended; None where it stays there.
    """

    message: Message
    tensor: Tensor
    lane: CommunicationStream | ServerStream | HookStream
    after: tuple[int, ...]
    fill: Callable[[], None] | None
    drain: Callable[[], None] | None


class MessageLauncher:
    """Launches the messages of one schedule, by their numbers, and waits for them.

    Args:
        schedule: checked.
        memory: that its messages carry.
        communicator: of the ranks.
        lanes: of the run.
        observer: takes the moments of each message; None takes none.

    Raises:
        OptionError: a message that cannot be carried out for real; it is named.

    Attributes:
        flying: by number, the messages that were launched and not waited for.
        hooked: whether a communication hook reduces the buckets.
    """

    def __init__(
        self,
        schedule: Schedule,
        memory: MessageMemory,
        communicator: Communicator,
        lanes: CommunicationStreams,
        observer: Observer | None,
    ) -> None:
        self._schedule, self._memory = schedule, memory
        self._communicator, self._observer = communicator, observer
        self.rates: Rates = rates_of([])
        self._lanes = _lanes_of(schedule, lanes)
        numbers = {message.id: number for number, message in enumerate(schedule)}
        self._prepared = [self._prepare(message, numbers) for message in schedule]
        self.flying: dict[int, MessageInFlight] = {}
        self.carried_bytes = 0
        self.hooked = False

    def use_hook(self, hook: Hook, state: Any) -> None:
        """Let `hook(state, bucket)` reduce each bucket of gradients, which are no longer divided before.

        Raises:
            OptionError: the schedule sums something else.
        """
        check_hookable(self._schedule)
        self.hooked = True
        for number, prepared in enumerate(self._prepared):
            flat, last = self._memory.flat_of(prepared.message), number == len(self._prepared) - 1
            flat.summed_over = 1
            lane = HookStream(hook, state, flat, last, self._communicator)
            self._prepared[number] = replace(prepared, lane=lane)

    def launch(self, numbers: Iterable[int]) -> None:
        """Begin messages, in order, each once the one of the same number before it has ended."""
        flying, observer = self.flying, self._observer
        for number in numbers:
            if number in flying:
                self._land(number)
            prepared = self._prepared[number]
            if prepared.fill is not None:
                prepared.fill()
            message = prepared.message
            self.carried_bytes += message.size_bytes
            before = [flying[other].work for other in prepared.after if other in flying] if prepared.after else ()
            begin = None if observer is None else observer.now()
            if self._communicator.noop:
                work: Work = FinishedWork()
            else:
                work = prepared.lane.launch(message.op, prepared.tensor, before, message.delay_s)
            note = None
            if observer is not None:
                note = observer.launched(number, message.parameters, message.size_bytes, begin, work, message.op)
            flying[number] = MessageInFlight(work, note)

    def wait(self, numbers: Iterable[int]) -> None:
        """Wait for those of the messages that are on their way."""
        for number in numbers:
            if number in self.flying:
                self._land(number)

    def wait_all(self) -> None:
        """Wait for all messages that were launched."""
        self.wait(list(self.flying))

    def _land(self, number: int) -> None:
        flight, prepared, observer = self.flying.pop(number), self._prepared[number], self._observer
        begin = observer.now() if observer is not None else None
        try:
            flight.work.wait()
        except RuntimeError as error:
            message = prepared.message
            raise_lost(self._communicator, f"the {message.op} {message.id!r} ({message.size_bytes:,} B)", error)
        if prepared.drain is not None:
            prepared.drain()
        if observer is not None and flight.note is not None:
            observer.waited_for(flight.note, begin)

    def _prepare(self, message: Message, numbers: dict[str, int]) -> PreparedMessage:
        memory, lane = self._memory, self._lanes[message.group, message.stream]
        after = tuple(numbers[name] for name in message.after_messages)
        tensor = memory.tensor(message)
        fill: Callable[[], None] | None = None
        drain: Callable[[], None] | None = None
        if averages(message):
            averaged = memory.averaged_of(message)
            fill = functools.partial(self._divide, averaged)
            drain = averaged.landed
        elif message.op.reduces and not message.sparse:
            fill = memory.flat_of(message).complete
            if message.chunks is not None:
                chunked, values = memory.chunked_of(message), message.chunks.phase == "values"
                fill = functools.partial(self._fill_chunks, message, after if values else None)
                drain = chunked.landed if values else None
        if isinstance(lane, ServerStream) and message.op.reduces:
            fill = functools.partial(self._tell_rate, lane, message.parameters, fill)
        return PreparedMessage(message, tensor, lane, after, fill, drain)

    def _tell_rate(self, lane: ServerStream, parameters: Sequence[int], fill: Callable[[], None] | None) -> None:
        """Have servers told the learning rate of what is pushed to them."""
        if fill is not None:
            fill()
        if not self._communicator.noop:
            [lane.rate, *_] = self.rates([self._memory.parameters[index] for index in parameters])

    def _divide(self, averaged: AveragedParameters) -> None:
        averaged.divide(self._communicator.world_size, self.rates)

    def _fill_chunks(self, message: Message, after: tuple[int, ...] | None) -> None:
        """Take the norms of a bucket's chunks, or choose among the chunks by what they are summed over the ranks."""
        self._memory.flat_of(message).complete()
        if after is None:
            self._memory.chunked_of(message).measure()
        else:
            self.wait(after)
            self._memory.chunked_of(message).choose()

    # ---- servers

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
            if group == SERVERS and stream == "push" and isinstance(lane, ServerStream):
                with naming_the_lost(self._communicator, "the last message to the servers"):
                    lane.tell(ENDS)


def _lanes_of(
    schedule: Schedule, lanes: CommunicationStreams
) -> dict[tuple[str, str], CommunicationStream | ServerStream]:
    """Return the lane of each group and stream of `schedule`, made in its order."""
    rings = {message.stream for message in schedule if message.op is not Operation.ALLREDUCE or message.delay_s}
    found: dict[tuple[str, str], CommunicationStream | ServerStream] = {}
    for group, stream in dict.fromkeys((message.group, message.stream) for message in schedule):
        if group != SERVERS:
            found[group, stream] = lanes.of(stream, rings=stream in rings, ranks=schedule.groups.get(group))
            continue
        messages = [message for message in schedule if message.stream == stream]
        made = lanes.of(stream, rings=False).group
        kind = RowStream if any(message.sparse for message in messages) else ServerStream
        found[group, stream] = kind(made, schedule.sharding.servers, len(messages))
    return found
