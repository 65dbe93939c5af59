"""The messages of a schedule in an executor: the memory each uses and what its launch does, or why it cannot run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from ddpexec.ddp.comm_hooks import Hook, reduce_by_hook
from ddpexec.ddp.lanes import CommunicationStream, CommunicationStreams
from ddpexec.ddp.launcher import Launcher, Sending, send_nothing
from ddpexec.ddp.memory import (
    AveragedParameters,
    ChunkedBucket,
    FlatGradients,
    Rates,
    gradients_in,
    keeps_parts,
    rates_of,
)
from ddpexec.ddp.parameter_servers import ENDS, LoopbackGroup, Server, ServerStatistics, ServerStream
from ddpexec.ddp.parameters import ModelParameters
from ddpexec.ddp.refusals import check_hookable
from ddpexec.ddp.sparse_rows import RowServer, RowStream
from ddpexec.ddp.updates import MakeOptimizer
from ddpexec.errors import OptionError
from ddpexec.groups.lost import name_lost_ranks
from ddpexec.groups.process_groups import Communicator
from ddpexec.groups.threads import in_thread
from ddpsim.common.operation import Operation
from ddpsim.schedules.averaging import NODE
from ddpsim.schedules.message import WORLD, Message
from ddpsim.schedules.points import BACKWARD_END, PointKind
from ddpsim.schedules.schedule import TRAINERS, Schedule, averages
from ddpsim.schedules.servers import SERVERS

CARRIED = (Operation.ALLREDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER)
"""Operations that are carried out for real."""

Indices = tuple[int, ...]
"""Registration indices of the parameters that a message carries, by which its memory is found."""


class CarriedMessages:
    """The messages of one schedule: what each carries, and what a launcher does for it.

    Args:
        schedule: checked.
        model: whose parameters the messages carry.
        communicator: of the ranks.
        lanes: of the run.
        launcher: whose sendings are set.
        dtype: in which gradients come and are sent; None is their parameters'.

    Attributes:
        parameters: of the model.
        flat, flats: gradients.
        averaged: parameters that messages average, or pull from servers.
        chunked: chunks of gradients, some of which are sent at a time.
        rates: from parameters to their learning rates.

    Raises:
        OptionError: a message that cannot be carried out, or whose parameters cannot lie together; it is named.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: ModelParameters,
        communicator: Communicator,
        lanes: CommunicationStreams,
        launcher: Launcher,
        dtype: torch.dtype | None,
    ) -> None:
        self.schedule, self._communicator, self.launcher = schedule, communicator, launcher
        self.parameters = model.tensors
        self.flat = _flats(schedule, model, communicator, dtype)
        self.flats = list(self.flat.values())
        self.averaged = _find_averaged(schedule, model)
        self.chunked = {
            message.parameters: ChunkedBucket(self.flat[message.parameters], message.chunks)
            for message in schedule
            if message.chunks is not None
        }
        self.rates: Rates = rates_of([])
        self._lanes = _lanes_of(schedule, lanes)
        numbers = {message.id: number for number, message in enumerate(schedule)}
        launcher.sendings = [self._make_sending(message, numbers) for message in schedule]

    @property
    def kept(self) -> list[Tensor]:
        """What averages and chunks remember from one iteration to the next."""
        keeping: list[AveragedParameters | ChunkedBucket] = [*self.averaged.values(), *self.chunked.values()]
        return [tensor for each in keeping for tensor in each.kept]

    @property
    def streams(self) -> list[CommunicationStream]:
        """The lanes that the messages go on, but those to servers."""
        return [lane for lane in self._lanes.values() if isinstance(lane, CommunicationStream)]

    @property
    def pushed_bytes(self) -> int:
        """Bytes that this rank has pushed to servers of other ranks."""
        return sum(lane.sent_bytes for lane in self._lanes.values() if isinstance(lane, ServerStream))

    def use_hook(self, hook: Hook, state: Any) -> None:
        """Let `hook(state, bucket)` reduce each bucket of gradients, which are no longer divided before.

        Raises:
            OptionError: the schedule sums something else.
        """
        check_hookable(self.schedule)
        sendings, last = self.launcher.sendings, len(self.schedule.messages) - 1
        for number, message in enumerate(self.schedule):
            flat, sending = self.flat[message.parameters], sendings[number]
            # torch gives a hook the sum's terms whole; a hook divides by itself (`allreduce_hook` in torch's
            # default_hooks.py).
            flat.divisor = 1
            sending.what, sending.others_code = f"the communication hook's reduction of bucket {flat.number}", True
            sending.send = reduce_by_hook(hook, state, flat, last=number == last)
            # After backward what was reduced is copied to the gradients, before a use they are views of the bucket.
            sending.drain = flat.take_reduced if self.schedule.update == "before_use" else None

    def _make_sending(self, message: Message, numbers: dict[str, int]) -> Sending:
        lane = self._lanes[message.group, message.stream]
        after = tuple(numbers[name] for name in message.after_messages)
        tensor, operation, delay_s = self._tensor(message), message.op, message.delay_s
        fill: Callable[[], None] | None = None
        drain: Callable[[], None] | None = None
        # What is done to the memory before sending (`fill`) and after the end (`drain`): averages divide by the ranks,
        # gradients are copied into the flat buffer, chunks are measured or chosen first.
        if averages(message):
            averaged = self.averaged[message.parameters]
            fill, drain = functools.partial(self._divide, averaged), averaged.apply_outer_step
        elif message.op.reduces and not message.sparse:
            fill = self.flat[message.parameters].complete
            if message.chunks is not None:
                values = message.chunks.phase == "values"
                fill = functools.partial(self._fill_chunks, message, after if values else None)
                drain = self.chunked[message.parameters].write_sums if values else None
        if isinstance(lane, ServerStream) and message.op.reduces:
            fill = functools.partial(self._tell_rate, lane, message.parameters, fill)
        what = f"the {operation} {message.id!r} ({message.size_bytes:,} B)"
        noop = self._communicator.noop
        send = send_nothing if noop else functools.partial(lane.launch, operation, tensor, delay_s=delay_s)
        return Sending(what, message.parameters, message.size_bytes, send, operation, after, fill, drain)

    def _tell_rate(self, lane: ServerStream, parameters: Sequence[int], fill: Callable[[], None] | None) -> None:
        """Note the learning rate of these parameters, which goes to the servers with the push."""
        if fill is not None:
            fill()
        if not self._communicator.noop:
            [lane.rate, *_] = self.rates([self.parameters[index] for index in parameters])

    def _divide(self, averaged: AveragedParameters) -> None:
        averaged.divide(self._communicator.world_size, self.rates)

    def _fill_chunks(self, message: Message, after: tuple[int, ...] | None) -> None:
        """Take the norms of a bucket's chunks, or choose among the chunks by what they are summed over the ranks."""
        self.flat[message.parameters].complete()
        chunked = self.chunked[message.parameters]
        if after is None:
            chunked.measure()
        else:
            self.launcher.wait(after)
            chunked.choose()

    # ---- where it lies

    def _tensor(self, message: Message) -> Tensor:
        """Return the whole of what a message carries.

        Raises:
            OptionError: it cannot be carried out for real; it is named.
        """
        place = f"message {message.id!r}"
        if message.group == SERVERS:
            return self._serve(message, place)
        self._check(message, place)
        if averages(message):
            return self.averaged[message.parameters].whole
        if message.chunks is not None:
            chunked = self.chunked[message.parameters]
            return chunked.norms if message.chunks.phase == "norms" else chunked.values
        return self._view_flat(message, place)

    def _serve(self, message: Message, place: str) -> Tensor:
        if self._communicator.backend != "gloo":
            raise OptionError("servers are carried out over gloo", place=place, remedy="use `backend=gloo`")
        if message.sparse:
            return self.parameters[message.parameters[0]]
        if not message.op.reduces:
            return self.averaged[message.parameters].whole
        return self.flat[message.parameters].buffer

    def _check(self, message: Message, place: str) -> None:
        grouped = message.group in (NODE, TRAINERS) and message.op is Operation.ALLREDUCE and not averages(message)
        if message.op not in CARRIED or not (message.group == WORLD or grouped):
            what = f"the executor carries out no {message.op} of group {message.group!r}"
            raise OptionError(what, place=place, remedy=f"use {', '.join(CARRIED)} of all ranks, or simulate it")
        if message.delay_s and self._communicator.backend != "gloo":
            raise OptionError("it is held back, which threads do over gloo", place=place, remedy="simulate it")
        if any(point.kind is PointKind.BACKWARD for point in (*message.after, *message.blocks)):
            raise OptionError("the executor does not see backward use a parameter", place=place, remedy="simulate it")

    def _view_flat(self, message: Message, place: str) -> Tensor:
        flat = self.flat[message.parameters]
        begin, end = message.part or (0, flat.size_bytes)
        if message.size_bytes != end - begin:
            what = f"it carries {message.size_bytes:,} B of parameters of {end - begin:,} B"
            raise OptionError(what, place=place, remedy="the executor sends parameters' own types; or simulate it")
        whole = flat.whole if gradients_in(message) else flat.weights
        if whole is None:
            what = "it gathers parameters, of which every rank has all"
            raise OptionError(what, place=place, remedy="shard the optimizer, or let it block `optimizer:INDEX`")
        if message.part is None:
            return whole if message.op.in_parts else whole[: flat.elements]
        if message.op.in_parts:
            what = f"the executor cuts no {message.op} into segments"
            raise OptionError(what, place=place, remedy="make its buckets smaller instead")
        item = whole.element_size()
        if any(end % item for end in message.part):
            what = f"its part {list(message.part)} divides an element"
            raise OptionError(what, place=place, remedy="cut at elements")
        return whole[message.part[0] // item : message.part[1] // item]

    # ---- servers

    def server(self, make_optimizer: MakeOptimizer) -> Server:
        """Return what this rank does where it serves."""
        schedule = self.schedule
        groups = [self._lanes[SERVERS, stream].group for stream in ("push", "pull")]
        pushes = [message for message in schedule if message.group == SERVERS and message.op.reduces]
        places = {message.id: place for place, message in enumerate(pushes)}
        pulls = [message for message in schedule if message.group == SERVERS and not message.op.reduces]
        order = [places[message.after_messages[0]] for message in pulls]
        sparse = any(message.sparse for message in pushes)
        wholes = [self.parameters[m.parameters[0]] if sparse else self.averaged[m.parameters].whole for m in pushes]
        kind, sharding = RowServer if sparse else Server, schedule.sharding
        trainers = self._communicator.world_size - sharding.servers
        return kind(self._communicator, groups, wholes, order, sharding.hosts, trainers, make_optimizer)

    def serve_beside(self, server: Server) -> Future[ServerStatistics]:
        """Let a server of this rank, which trains, serve in a thread."""
        groups = [lane.group for lane in self._lanes.values() if isinstance(lane.group, LoopbackGroup)]
        serve = server.serve_all if self.schedule.ranks_meet else server.serve_each

        def run() -> ServerStatistics:
            try:
                return serve()
            except BaseException as error:
                # Without this, training on the same rank would wait for its own dead server until the timeout.
                for group in groups:  # by which this rank's training waits for it
                    group.fail(error)
                raise

        return in_thread(run, "ddpexec server beside")

    def end(self) -> None:
        """Tell servers, where there are any, that this rank trains no more."""
        for (group, stream), lane in self._lanes.items():
            if group == SERVERS and stream == "push" and isinstance(lane, ServerStream):
                with name_lost_ranks(self._communicator, "the last message to the servers"):
                    lane.tell(ENDS)


def _flats(
    schedule: Schedule, model: ModelParameters, communicator: Communicator, dtype: torch.dtype | None
) -> dict[Indices, FlatGradients]:
    """Return the gradients that the messages of `schedule` carry.

    Raises:
        OptionError: a message of several types or devices, or of parameters that others carry otherwise.
    """
    rank, ranks, sharded = communicator.rank, communicator.world_size, keeps_parts(schedule)
    late = {message.parameters for message in schedule if message.op.reduces and BACKWARD_END in message.after}
    flats: dict[Indices, FlatGradients] = {}
    owner: dict[int, str] = {}
    for number, message in enumerate(schedule):
        indices, place = message.parameters, f"message {message.id!r}"
        if not indices:
            raise OptionError("it carries no parameters", place=place, remedy="name those whose gradients it carries")
        if averages(message) or message.sparse:
            continue
        # Messages of the same parameters share one memory, such as a reduce-scatter and the all-gather after it. Two
        # that share only some would overlap in none that both could use: refused.
        if (flat := flats.get(indices)) is None:
            _check_alike(indices, model, place)
            if both := [i for i in indices if i in owner]:
                what = f"it carries {model.names[both[0]]} with others than message {owner[both[0]]!r} does"
                raise OptionError(what, place=place, remedy="give both the same parameters in the same order")
            owner |= dict.fromkeys(indices, message.id)
            flat = flats[indices] = FlatGradients(
                len(flats), indices, model, ranks, rank, sharded=sharded, late=indices in late, dtype=dtype
            )
            # Gradients are divided before they are summed, as torch does. Asynchronous servers update by one rank's
            # gradient at a time, which is not divided.
            flat.divisor = schedule.groups.get(message.group, ranks)
            if message.group == SERVERS:
                flat.divisor = ranks - schedule.sharding.servers if schedule.ranks_meet else 1
        flat.numbers += (number,)
        flat.every = max(flat.every, message.every)
    return flats


def _find_averaged(schedule: Schedule, model: ModelParameters) -> dict[Indices, AveragedParameters]:
    """Return the parameters that messages of `schedule` average, or pull.

    Raises:
        OptionError: a part of one, or parameters of several types or devices.
    """
    averaged: dict[Indices, AveragedParameters] = {}
    for message in schedule:
        place = f"message {message.id!r}"
        pulls = message.group == SERVERS and not message.op.reduces and not message.sparse
        if not (pulls or averages(message)):
            continue
        if not pulls and (message.op is not Operation.ALLREDUCE or message.part is not None or not message.in_place):
            what, remedy = "the executor averages parameters whole, where they lie", "send them `in_place`, or simulate"
            raise OptionError(what, place=place, remedy=remedy)
        _check_alike(message.parameters, model, place)
        outer = None if pulls else schedule.outer
        averaged[message.parameters] = AveragedParameters(len(averaged), message.parameters, model, outer)
    return averaged


def _check_alike(indices: Sequence[int], model: ModelParameters, place: str) -> None:
    if len({(model.policy[i].dtype, model.policy[i].device) for i in indices}) > 1:
        remedy = "make a message of each"
        raise OptionError("its parameters are of several types or devices", place=place, remedy=remedy)


def _lanes_of(
    schedule: Schedule, lanes: CommunicationStreams
) -> dict[tuple[str, str], CommunicationStream | ServerStream]:
    """Return the communication stream of each group and stream name of `schedule`, constructed in its order."""
    rings = {message.stream for message in schedule if message.op is not Operation.ALLREDUCE or message.delay_s}
    lanes_by_stream: dict[tuple[str, str], CommunicationStream | ServerStream] = {}
    for group, stream in dict.fromkeys((message.group, message.stream) for message in schedule):
        if group != SERVERS:
            lanes_by_stream[group, stream] = lanes.of(stream, rings=stream in rings, ranks=schedule.groups.get(group))
            continue
        messages = [message for message in schedule if message.stream == stream]
        everyone = lanes.of(stream, rings=False).group
        kind = RowStream if any(message.sparse for message in messages) else ServerStream
        itself = everyone.rank() in schedule.sharding.hosts and not schedule.sharding.servers
        lanes_by_stream[group, stream] = kind(
            LoopbackGroup(everyone) if itself else everyone, schedule.sharding.hosts, len(messages)
        )
    return lanes_by_stream
