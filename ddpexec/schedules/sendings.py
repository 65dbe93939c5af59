"""What a launcher does for each message of a schedule: which collective, on which memory, and what around it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ddpexec.ddp.comm_hooks import Hook, by_hook
from ddpexec.ddp.launcher import Launcher, Sending, nothing_sent
from ddpexec.groups.lost import naming_the_lost
from ddpexec.groups.process_groups import Communicator
from ddpexec.schedules.averaged import AveragedParameters, Rates, rates_of
from ddpexec.schedules.lanes import CommunicationStream, CommunicationStreams
from ddpexec.schedules.message_memory import MessageMemory
from ddpexec.schedules.refusals import check_hookable
from ddpexec.schedules.rows import RowServer, RowStream
from ddpexec.schedules.served import ENDS, Server, ServerStream
from ddpexec.schedules.updates import MakeOptimizer
from ddpsim.operations import Operation
from ddpsim.schedules.message import Message
from ddpsim.schedules.schedule import Schedule, averages
from ddpsim.schedules.servers import SERVERS


class ScheduleSendings:
    """Tells a launcher what the messages of one schedule do, by their numbers, and servers when all is over.

    Args:
        schedule: checked.
        memory: that its messages carry.
        communicator: of the ranks.
        lanes: of the run.
        launcher: whose sendings are set.

    Raises:
        OptionError: a message that cannot be carried out for real; it is named.

    Attributes:
        hooked: whether a communication hook reduces the buckets.
        rates: from parameters to their learning rates.
    """

    def __init__(
        self,
        schedule: Schedule,
        memory: MessageMemory,
        communicator: Communicator,
        lanes: CommunicationStreams,
        launcher: Launcher,
    ) -> None:
        self._schedule, self._memory, self._launcher = schedule, memory, launcher
        self._communicator = communicator
        self.rates: Rates = rates_of([])
        self._lanes = _lanes_of(schedule, lanes)
        numbers = {message.id: number for number, message in enumerate(schedule)}
        launcher.sendings = [self._sending(message, numbers) for message in schedule]
        self.hooked = False

    @property
    def streams(self) -> list[CommunicationStream]:
        """The lanes that the messages go on, but those to servers."""
        return [lane for lane in self._lanes.values() if isinstance(lane, CommunicationStream)]

    def use_hook(self, hook: Hook, state: Any) -> None:
        """Let `hook(state, bucket)` reduce each bucket of gradients, which are no longer divided before.

        Raises:
            OptionError: the schedule sums something else.
        """
        check_hookable(self._schedule)
        self.hooked = True
        sendings, last = self._launcher.sendings, len(self._schedule.messages) - 1
        for number, message in enumerate(self._schedule):
            flat, sending = self._memory.flat_of(message), sendings[number]
            flat.summed_over = 1
            sending.what, sending.others_code = f"the communication hook's reduction of bucket {flat.number}", True
            sending.send = by_hook(hook, state, flat.bucket, last=number == last)
            # After backward what was reduced is copied to the gradients, before a use they are views of the bucket.
            sending.drain = flat.bucket.take_reduced if self._schedule.update == "before_use" else None

    def _sending(self, message: Message, numbers: dict[str, int]) -> Sending:
        memory, lane = self._memory, self._lanes[message.group, message.stream]
        after = tuple(numbers[name] for name in message.after_messages)
        tensor, operation, delay_s = memory.tensor(message), message.op, message.delay_s
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
        what = f"the {operation} {message.id!r} ({message.size_bytes:,} B)"
        noop = self._communicator.noop
        send = nothing_sent if noop else functools.partial(lane.launch, operation, tensor, delay_s=delay_s)
        return Sending(what, message.parameters, message.size_bytes, send, operation, after, fill, drain)

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
            self._launcher.wait(after)
            self._memory.chunked_of(message).choose()

    # ---- servers

    def server(self, schedule: Schedule, make_optimizer: MakeOptimizer) -> Server:
        """Return what this rank does where it serves."""
        push, pull = (self._lanes[SERVERS, stream] for stream in ("push", "pull"))
        pushes = [message for message in schedule if message.group == SERVERS and message.op.reduces]
        places = {message.id: place for place, message in enumerate(pushes)}
        pulls = [message for message in schedule if message.group == SERVERS and not message.op.reduces]
        order = [places[message.after_messages[0]] for message in pulls]
        hosts = schedule.sharding.hosts
        if any(message.sparse for message in pushes):
            rows = [self._memory.parameters[message.parameters[0]] for message in pushes]
            return RowServer(self._communicator, push.group, pull.group, rows, order, hosts, make_optimizer)
        buckets = [self._memory.averaged_of(message).whole for message in pushes]
        return Server(self._communicator, push.group, pull.group, buckets, order, hosts, make_optimizer)

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
        found[group, stream] = kind(made, schedule.sharding.hosts, len(messages))
    return found
