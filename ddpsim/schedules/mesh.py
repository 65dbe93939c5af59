"""A schedule beside tensor or expert parallelism: its messages on the ranks that have the same part of the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import PlanError
from ddpsim.schedules.message import WORLD, Message
from ddpsim.schedules.points import Point, PointKind
from ddpsim.schedules.schedule import Schedule, Sharding

TENSOR, EXPERT, DATA = "tensor", "expert", "data"
"""Names of the groups: consecutive ranks that share each layer, or the experts, and the ranks of one place in each of
those groups."""

SHARD, REPLICA = "shard", "replica"
"""Names of the groups: ranks that share one copy, and the ranks of one place in each copy."""

_OF_EXPERTS = " experts"
"""Behind the id of what a message has of experts, where it has both."""

STRIDED = (REPLICA, DATA)
"""Groups of the ranks of one place in each group of consecutive ranks."""

LAYERS = ((TENSOR, "layers"), (EXPERT, "layers"))
"""The groups and streams on which layers wait for their messages."""

SENDS = "sends"
"""Name of the pairs of ranks, a rank of one stage of a pipeline and one of the next."""


def group_of_stage(name: str, number: int) -> str:
    """Return the name of the groups `name` of the ranks of one place of a pipeline, or of what one stage sends.

    >>> group_of_stage(DATA, 2)
    'data 2'
    """
    return f"{name} {number}"


def stage_of_group(group: str) -> tuple[str, int]:
    """Return what `group_of_stage` was given.

    >>> stage_of_group("data 2")
    ('data', 2)
    """
    name, _, number = group.rpartition(" ")
    return name, int(number)


def beside_tensor(schedule: Schedule, tensor_ranks: int, data_ranks: int, remedy: str | None = None) -> Schedule:
    """Return `schedule`, made for `data_ranks` ranks, with its messages on the data group of each rank.

    Raises:
        PlanError: a scheme whose ranks are in groups already, serve others, or are threads of one process.
    """
    if schedule.groups or schedule.patterns or schedule.one_process:
        what = f"its ranks cannot be in groups of {tensor_ranks} that share layers"
        known = "use ddp, naive, flat, priority, dear, zero1, zero2, zero3 or fsdp2, or leave `tensor_parallel` out"
        raise PlanError(what, place=f"scheme {schedule.scheme!r}", remedy=remedy or known)
    messages = tuple(replace(each, group=DATA) if each.group == WORLD else each for each in schedule)
    return replace(schedule, messages=messages, groups={TENSOR: tensor_ranks, DATA: data_ranks})


def beside_experts(
    schedule: Schedule, expert_ranks: int, data_ranks: int, parameters: Sequence[Parameter], experts: Collection[int]
) -> Schedule:
    """Return `schedule` with what it sends of experts on the data group of each rank, and all else on all ranks.

    A message of both is two, of which each waits, and is waited for, where its own parameters are.

    Args:
        parameters: of a rank, and
        experts: registration indices of those of its experts.

    Raises:
        PlanError: a scheme whose ranks are in groups already, serve others or are threads of one process, or that sends
            parts of experts and of all else in one message.
    """
    split = _Split(tuple(each.size_bytes for each in parameters), frozenset(experts))
    cut = any(each.chunks is not None or (each.part is not None and split.is_mixed(each)) for each in schedule)
    if schedule.groups or schedule.patterns or schedule.one_process or cut:
        what = f"its messages cannot be parted where experts in groups of {expert_ranks} ranks have theirs apart"
        remedy = "use ddp, naive, flat, priority, dear, zero1, zero2 or fsdp2, or leave `expert_parallel` out"
        raise PlanError(what, place=f"scheme {schedule.scheme!r}", remedy=remedy)
    ids = {each.id: split.is_mixed(each) for each in schedule}
    messages = tuple(part for each in schedule for part in split.apart(each, ids))
    sharding = split.sharded(schedule.sharding, data_ranks, expert_ranks)
    return replace(schedule, messages=messages, sharding=sharding, groups={EXPERT: expert_ranks, DATA: data_ranks})


@dataclass(frozen=True, slots=True)
class _Split:
    """Parts what is of experts from all else.

    Attributes:
        sizes: bytes of each parameter.
        experts: registration indices of those of experts.
    """

    sizes: tuple[int, ...]
    experts: frozenset[int]

    def is_mixed(self, message: Message) -> bool:
        """Whether a message has parameters of both."""
        return 0 < sum(index in self.experts for index in message.parameters) < len(message.parameters)

    def apart(self, message: Message, mixed: Mapping[str, bool]) -> Iterator[Message]:
        """Yield what a message has of all but experts, and what of experts, on the group of their data.

        Args:
            mixed: by id whether a message is parted.
        """
        for group, name in ((WORLD, ""), (DATA, _OF_EXPERTS)):
            chosen = tuple(index for index in message.parameters if (index in self.experts) == (group == DATA))
            if not chosen and (message.parameters or group == DATA):
                continue
            after = tuple(each + name if mixed.get(each) else each for each in message.after_messages)
            if not self.is_mixed(message):
                yield replace(message, group=group, after_messages=after)
                continue
            other = {*message.parameters} - {*chosen}
            yield replace(
                message,
                id=message.id + name,
                group=group,
                parameters=chosen,
                size_bytes=round(message.size_bytes * self._bytes(chosen) / self._bytes(message.parameters)),
                after=tuple(point for point in message.after if not (_of_gradient(point) and point.parameter in other)),
                after_messages=after,
                blocks=tuple(point for point in message.blocks if point.parameter not in other),
            )

    def sharded(self, sharding: Sharding, data_ranks: int, expert_ranks: int) -> Sharding:
        """Return over how many ranks state is split, in the mean of its bytes: experts' over those of their data."""
        world, whole, own = data_ranks * expert_ranks, sum(self.sizes), self._bytes(self.experts)
        mean = whole / ((whole - own) / world + own / data_ranks)
        parameters, gradients, optimizer = (
            mean if ranks == world else ranks for ranks in (sharding.parameters, sharding.gradients, sharding.optimizer)
        )
        return replace(sharding, parameters=parameters, gradients=gradients, optimizer=optimizer)

    def _bytes(self, parameters: Iterable[int]) -> int:
        return sum(self.sizes[index] for index in parameters)


def _of_gradient(point: Point) -> bool:
    return point.kind is PointKind.GRADIENT
