"""Where each message of a schedule lies in memory, or why this executor cannot carry it out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddpexec.ddp.parameters import ModelParameters
from ddpexec.errors import OptionError
from ddpexec.groups.process_groups import Communicator
from ddpexec.schedules.averaged import AveragedParameters
from ddpexec.schedules.chunked import ChunkedBucket
from ddpexec.schedules.memory import FlatGradients
from ddpsim.operations import Operation
from ddpsim.schedules.averaging import NODE
from ddpsim.schedules.message import WORLD, Message
from ddpsim.schedules.points import BACKWARD_END, PointKind
from ddpsim.schedules.schedule import TRAINERS, Schedule, averages
from ddpsim.schedules.servers import SERVERS

CARRIED = (Operation.ALLREDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER)
"""Operations that are carried out for real."""


class MessageMemory:
    """The memory that the messages of one schedule carry: gradients, averaged parameters, and chosen chunks.

    Args:
        schedule: checked.
        model: whose parameters the messages carry.
        communicator: of the ranks.
        dtype: in which gradients come and are sent; None is their parameters'.

    Raises:
        OptionError: messages whose parameters cannot lie together; one is named.
    """

    def __init__(
        self, schedule: Schedule, model: ModelParameters, communicator: Communicator, dtype: torch.dtype | None = None
    ) -> None:
        self.parameters, self._backend = model.tensors, communicator.backend
        self.flats = _flats(schedule, model, communicator, dtype)
        self._flats = {flat.indices: flat for flat in self.flats}
        self.averaged = _averaged(schedule, model)
        self._averaged = {each.indices: each for each in self.averaged}
        self._chunked = {
            m.parameters: ChunkedBucket(self.flat_of(m), m.chunks) for m in schedule if m.chunks is not None
        }

    def flat_of(self, message: Message) -> FlatGradients:
        """Return the gradients that a message carries."""
        return self._flats[message.parameters]

    def averaged_of(self, message: Message) -> AveragedParameters:
        """Return the parameters that a message averages, or pulls from servers."""
        return self._averaged[message.parameters]

    def chunked_of(self, message: Message) -> ChunkedBucket:
        """Return the chunks of gradients that a message carries, or whose norms it does."""
        return self._chunked[message.parameters]

    def in_chunks(self, flat: FlatGradients) -> bool:
        """Whether only some chunks of `flat` are sent at a time."""
        return flat.indices in self._chunked

    @property
    def kept(self) -> list[Tensor]:
        """What averages and chunks remember from one iteration to the next."""
        keeping: list[AveragedParameters | ChunkedBucket] = [*self.averaged, *self._chunked.values()]
        return [tensor for each in keeping for tensor in each.kept]

    def tensor(self, message: Message) -> Tensor:
        """Return the whole of what a message carries.

        Raises:
            OptionError: it cannot be carried out for real; it is named.
        """
        place = f"message {message.id!r}"
        if message.group == SERVERS:
            return self._served(message, place)
        self._check(message, place)
        if averages(message):
            return self.averaged_of(message).whole
        if message.chunks is not None:
            chunked = self.chunked_of(message)
            return chunked.norms if message.chunks.phase == "norms" else chunked.values
        return self._of_flat(message, place)

    def _served(self, message: Message, place: str) -> Tensor:
        if self._backend != "gloo":
            raise OptionError("servers are carried out over gloo", place=place, remedy="use `backend=gloo`")
        if message.sparse:
            return self.parameters[message.parameters[0]]
        if not message.op.reduces:
            return self.averaged_of(message).whole
        flat = self.flat_of(message)
        return flat.gradients[: flat.bucket.buffer.numel()]

    def _check(self, message: Message, place: str) -> None:
        grouped = message.group in (NODE, TRAINERS) and message.op is Operation.ALLREDUCE and not averages(message)
        if message.op not in CARRIED or not (message.group == WORLD or grouped):
            what = f"the executor carries out no {message.op} of group {message.group!r}"
            raise OptionError(what, place=place, remedy=f"use {', '.join(CARRIED)} of all ranks, or simulate it")
        if message.delay_s and self._backend != "gloo":
            raise OptionError("it is held back, which threads do over gloo", place=place, remedy="simulate it")
        if any(point.kind is PointKind.BACKWARD for point in (*message.after, *message.blocks)):
            raise OptionError("the executor does not see backward use a parameter", place=place, remedy="simulate it")

    def _of_flat(self, message: Message, place: str) -> Tensor:
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


def keeps_parts(schedule: Schedule) -> bool:
    """Whether a rank updates its part of the parameters only, so that messages gather them."""
    here = schedule.update != "elsewhere"
    return here and (schedule.sharding.optimizer > 1 or not all(map(gradients_in, _of_ranks(schedule))))


def gradients_in(message: Message) -> bool:
    """Whether a message carries gradients: it sums them, or gathers what an optimizer waits for."""
    return message.op.reduces or any(point.kind is PointKind.OPTIMIZER for point in message.blocks)


def _of_ranks(schedule: Schedule) -> list[Message]:
    """Return the messages that training ranks send each other."""
    return [message for message in schedule if message.group != SERVERS]


def _flats(
    schedule: Schedule, model: ModelParameters, communicator: Communicator, dtype: torch.dtype | None
) -> list[FlatGradients]:
    """Return the memory that the messages of `schedule` carry.

    Raises:
        OptionError: a message of several types or devices, or of parameters that others carry otherwise.
    """
    sharded = keeps_parts(schedule)
    late = {message.parameters for message in schedule if message.op.reduces and BACKWARD_END in message.after}
    flats: dict[tuple[int, ...], FlatGradients] = {}
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
        late_here = indices in late
        flats[indices] = FlatGradients(
            len(flats), indices, model, ranks, rank, sharded=sharded, late=late_here, dtype=dtype
        )
        flats[indices].summed_over = schedule.groups.get(message.group, ranks)
        if message.group == SERVERS:
            flats[indices].summed_over = 1 if schedule.asynchronous else ranks - schedule.sharding.servers
    for number, message in enumerate(schedule):
        if (flat := flats.get(message.parameters)) is not None and not averages(message):
            flat.numbers += (number,)
            flat.every = max(flat.every, message.every)
    return list(flats.values())


def _averaged(schedule: Schedule, model: ModelParameters) -> list[AveragedParameters]:
    """Return the memory of the parameters that messages of `schedule` average.

    Raises:
        OptionError: a part of one, or parameters of several types or devices.
    """
    found: list[AveragedParameters] = []
    for message in schedule:
        place = f"message {message.id!r}"
        pulls = message.group == SERVERS and not message.op.reduces and not message.sparse
        if not (pulls or averages(message)):
            continue
        if pulls:
            _check_alike(message.parameters, model, place)
            found.append(AveragedParameters(len(found), message.parameters, model, None))
            continue
        if message.op is not Operation.ALLREDUCE or message.part is not None or not message.in_place:
            what, remedy = "the executor averages parameters whole, where they lie", "send them `in_place`, or simulate"
            raise OptionError(what, place=place, remedy=remedy)
        _check_alike(message.parameters, model, place)
        found.append(AveragedParameters(len(found), message.parameters, model, schedule.outer))
    return found


def _check_alike(indices: Sequence[int], model: ModelParameters, place: str) -> None:
    if len({(model.policy[i].dtype, model.policy[i].device) for i in indices}) > 1:
        remedy = "make a message of each"
        raise OptionError("its parameters are of several types or devices", place=place, remedy=remedy)
