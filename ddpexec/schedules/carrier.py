"""From a schedule's messages to collectives on memory, and the wait for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ddpexec.ddp.parameters import ModelParameters
from ddpexec.errors import OptionError
from ddpexec.groups.lost import naming_the_lost, raise_lost
from ddpexec.groups.process_groups import Communicator, FinishedWork, Work
from ddpexec.schedules.averaged import Averaged, Rates, rates_of
from ddpexec.schedules.chunked import Chunked
from ddpexec.schedules.lanes import Lane, Lanes
from ddpexec.schedules.memory import Flat
from ddpexec.schedules.rows import RowLane, RowServer
from ddpexec.schedules.served import ENDS, Server, ServerLane
from ddpexec.schedules.updates import MakeOptimizer
from ddpexec.timing.observe import BucketNote, Observer
from ddpsim.operations import Operation
from ddpsim.schedules.averaging import NODE
from ddpsim.schedules.message import WORLD, Message
from ddpsim.schedules.points import BACKWARD_END, Kind
from ddpsim.schedules.schedule import TRAINERS, Schedule, averages
from ddpsim.schedules.servers import SERVERS

CARRIED = (Operation.ALLREDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER)
"""Operations that are carried out for real."""


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
        model: whose parameters the messages carry.
        communicator: of the ranks.
        lanes: of the run.
        observer: takes the moments of each message; None takes none.

    Raises:
        OptionError: a message that cannot be carried out for real; it is named.
    """

    def __init__(
        self,
        schedule: Schedule,
        model: ModelParameters,
        communicator: Communicator,
        lanes: Lanes,
        observer: Observer | None,
    ) -> None:
        self._communicator, self._observer = communicator, observer
        self._parameters = model.tensors
        self.flats = flats_of(schedule, model, communicator)
        self._flats = {flat.indices: flat for flat in self.flats}
        self.averaged = averaged_of(schedule, model)
        self._averaged = {each.indices: each for each in self.averaged}
        self._chunked = {m.parameters: Chunked(self.flat_of(m), m.chunks) for m in schedule if m.chunks is not None}
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
        self._tensors = {message.id: self._tensor(message) for message in schedule}
        self._flights: dict[str, Flight] = {}
        self.carried_bytes = 0

    @property
    def chunked(self) -> list[Chunked]:
        """The memory of buckets of which chunks are sent."""
        return list(self._chunked.values())

    def flat_of(self, message: Message) -> Flat:
        """Return the memory that a message carries."""
        return self._flats[message.parameters]

    def launch(self, messages: Iterable[Message]) -> None:
        """Begin messages, in order."""
        for message in messages:
            if averages(message):
                self._averaged[message.parameters].divide(self._communicator.world_size, self.rates)
            elif message.op.reduces and not message.sparse:
                flat = self.flat_of(message)
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
            self._chunked[message.parameters].measure()
        else:
            self.wait(self._messages[name] for name in message.after_messages)
            self._chunked[message.parameters].choose()

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
            [lane.rate, *_] = self.rates([self._parameters[index] for index in message.parameters])
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
            self._averaged[flight.message.parameters].landed()
        if flight.message.chunks is not None and flight.message.chunks.phase == "values":
            self._chunked[flight.message.parameters].landed()
        if observer is not None and note is not None:
            observer.waited_for(note, begin)

    def _tensor(self, message: Message) -> Tensor:
        place = f"message {message.id!r}"
        if message.group == SERVERS:
            return self._served(message, place)
        grouped = message.group in (NODE, TRAINERS) and message.op is Operation.ALLREDUCE and not averages(message)
        if message.op not in CARRIED or not (message.group == WORLD or grouped):
            what = f"the executor carries out no {message.op} of group {message.group!r}"
            raise OptionError(what, place=place, remedy=f"use {', '.join(CARRIED)} of all ranks, or simulate it")
        if message.delay_s and self._communicator.backend != "gloo":
            raise OptionError("it is held back, which threads do over gloo", place=place, remedy="simulate it")
        if any(point.kind is Kind.BACKWARD for point in (*message.after, *message.blocks)):
            raise OptionError("the executor does not see backward use a parameter", place=place, remedy="simulate it")
        if averages(message):
            return self._averaged[message.parameters].whole
        if message.chunks is not None:
            chunked = self._chunked[message.parameters]
            return chunked.norms if message.chunks.phase == "norms" else chunked.values
        flat = self.flat_of(message)
        begin, end = message.part or (0, flat.bucket.size_bytes)
        if message.size_bytes != end - begin:
            what = f"it carries {message.size_bytes:,} B of parameters of {end - begin:,} B"
            raise OptionError(what, place=place, remedy="the executor sends parameters' own types; or simulate it")
        whole = flat.gradients if gradients_in(message) else flat.parameters
        if whole is None:
            what = "it gathers parameters, of which every rank has all"
            raise OptionError(what, place=place, remedy="shard the optimizer, or let it block `optimizer:INDEX`")
        if message.part is None:
            return whole if message.op.in_parts else whole[: flat.bucket.buffer.numel()]
        if message.op.in_parts:
            what = f"the executor cuts no {message.op} into segments"
            raise OptionError(what, place=place, remedy="make its buckets smaller instead")
        item = whole.element_size()
        if any(end % item for end in message.part):
            raise OptionError(
                f"its part {list(message.part)} divides an element", place=place, remedy="cut at elements"
            )
        return whole[message.part[0] // item : message.part[1] // item]

    def _served(self, message: Message, place: str) -> Tensor:
        if self._communicator.backend != "gloo":
            raise OptionError("servers are carried out over gloo", place=place, remedy="use `backend=gloo`")
        if message.sparse:
            return self._parameters[message.parameters[0]]
        if not message.op.reduces:
            return self._averaged[message.parameters].whole
        flat = self.flat_of(message)
        return flat.gradients[: flat.bucket.buffer.numel()]

    def server(self, schedule: Schedule, make_optimizer: MakeOptimizer) -> Server:
        """Return what this rank does where it serves."""
        push, pull = (self._lanes[SERVERS, stream] for stream in ("push", "pull"))
        pushes = [message for message in schedule if message.group == SERVERS and message.op.reduces]
        places = {message.id: place for place, message in enumerate(pushes)}
        pulls = [message for message in schedule if message.group == SERVERS and not message.op.reduces]
        order = [places[message.after_messages[0]] for message in pulls]
        servers = schedule.sharding.servers
        if any(message.sparse for message in pushes):
            rows = [self._parameters[message.parameters[0]] for message in pushes]
            return RowServer(self._communicator, push.group, pull.group, rows, order, servers, make_optimizer)
        buckets = [self._averaged[message.parameters].whole for message in pushes]
        return Server(self._communicator, push.group, pull.group, buckets, order, servers, make_optimizer)

    def end(self) -> None:
        """Tell servers, where there are any, that this rank trains no more."""
        for (group, stream), lane in self._lanes.items():
            if group == SERVERS and stream == "push" and isinstance(lane, ServerLane):
                with naming_the_lost(self._communicator, "the last message to the servers"):
                    lane.tell(ENDS)


def gradients_in(message: Message) -> bool:
    """Whether a message carries gradients: it sums them, or gathers what an optimizer waits for."""
    return message.op.reduces or any(point.kind is Kind.OPTIMIZER for point in message.blocks)


def averaged_of(schedule: Schedule, model: ModelParameters) -> list[Averaged]:
    """Return the memory of the parameters that messages of `schedule` average.

    Raises:
        OptionError: a part of one, or parameters of several types or devices.
    """
    found: list[Averaged] = []
    for message in schedule:
        place = f"message {message.id!r}"
        pulls = message.group == SERVERS and not message.op.reduces and not message.sparse
        if not (pulls or averages(message)):
            continue
        if pulls:
            _check_alike(message.parameters, model, place)
            found.append(Averaged(len(found), message.parameters, model, None))
            continue
        if message.op is not Operation.ALLREDUCE or message.part is not None or not message.in_place:
            what, remedy = "the executor averages parameters whole, where they lie", "send them `in_place`, or simulate"
            raise OptionError(what, place=place, remedy=remedy)
        _check_alike(message.parameters, model, place)
        found.append(Averaged(len(found), message.parameters, model, schedule.outer))
    return found


def _check_alike(indices: Sequence[int], model: ModelParameters, place: str) -> None:
    if len({(model.policy[i].dtype, model.policy[i].device) for i in indices}) > 1:
        remedy = "make a message of each"
        raise OptionError("its parameters are of several types or devices", place=place, remedy=remedy)


def keeps_parts(schedule: Schedule) -> bool:
    """Whether a rank updates its part of the parameters only, so that messages gather them."""
    here = schedule.update != "elsewhere"
    return here and (schedule.sharding.optimizer > 1 or not all(map(gradients_in, of_ranks(schedule))))


def of_ranks(schedule: Schedule) -> list[Message]:
    """Return the messages that training ranks send each other."""
    return [message for message in schedule if message.group != SERVERS]


def flats_of(schedule: Schedule, model: ModelParameters, communicator: Communicator) -> list[Flat]:
    """Return the memory that the messages of `schedule` carry.

    Raises:
        OptionError: a message of several types or devices, or of parameters that others carry otherwise.
    """
    sharded = keeps_parts(schedule)
    late = {message.parameters for message in schedule if message.op.reduces and BACKWARD_END in message.after}
    flats: dict[tuple[int, ...], Flat] = {}
    owner: dict[int, str] = {}
    for message in schedule:
        indices, place = message.parameters, f"message {message.id!r}"
        if not indices:
            raise OptionError("it carries no parameters", place=place, remedy="name those whose gradients it carries")
        if indices in flats or averages(message) or message.sparse:
            continue
        _check_alike(indices, model, place)
        if both := [i for i in indices if i in owner]:
            what = f"it carries {model.names[both[0]]} with others than message {owner[both[0]]!r} does"
            raise OptionError(what, place=place, remedy="give both the same parameters in the same order")
        owner |= dict.fromkeys(indices, message.id)
        rank, ranks = communicator.rank, communicator.world_size
        flats[indices] = Flat(len(flats), indices, model, ranks, rank, sharded=sharded, late=indices in late)
        flats[indices].summed_over = schedule.groups.get(message.group, ranks)
        if message.group == SERVERS:
            flats[indices].summed_over = 1 if schedule.asynchronous else ranks - schedule.sharding.servers
    return list(flats.values())
