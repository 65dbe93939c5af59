"""What a rank launches at once, where it waits for that, and when each message may leave.

A message is a bucket of DDP's or a message of a schedule. Which may leave where is asked of the queue that an executor
asks, `LaunchQueue`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ddpsim.bucketing import LaunchQueue
from ddpsim.collectives.codec_costs import Encoding
from ddpsim.errors import PlanError
from ddpsim.jobs.updates import WHOLE_UPDATE, ForwardWait, OptimizerUpdate
from ddpsim.operations import Operation
from ddpsim.schedules.message import WORLD
from ddpsim.schedules.points import Point
from ddpsim.schedules.schedule import Lane, Schedule, gradient_points


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """What a rank launches at once: a bucket of DDP's, or a message of a schedule.

    Attributes:
        number: place in the plan or the schedule.
        size_bytes: of the whole message.
        parameters: registration indices.
        encoding: the collectives it takes, with what is computed for them.
        write_back_s: device time of copying it out when it has ended.
        operation: what is done with it.
        lane: of its group and stream; None where process groups take turns.
        after: numbers of those that must have ended before it begins.
        fill_s: device time of copying into it when it is launched.
        host_awaits: whether the host waits for those before it launches it; else what carries it out does.
        delay_s: how long it waits before it begins, of itself.
        blocking: whether the host waits for its end where it launches it.
        from_host_s, to_host_s: of the copy engine, before it begins and once it has ended.
        device: number of the device, of a rank that has several, whose gradients it sends.
    """

    number: int
    size_bytes: int
    parameters: tuple[int, ...]
    encoding: Encoding
    write_back_s: float
    operation: Operation = Operation.ALLREDUCE
    lane: int | None = None
    after: tuple[int, ...] = ()
    fill_s: float = 0.0
    host_awaits: bool = False
    delay_s: float = 0.0
    blocking: bool = False
    from_host_s: float = 0.0
    to_host_s: float = 0.0
    device: int = 0


BUCKETS = Schedule(scheme="ddp", messages=())
"""Of DDP's own buckets, which are those of each iteration's plan."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """What one kind of rank sends, and where it waits for that: a schedule's messages, or DDP's own buckets.

    Attributes:
        schedule: with its messages cut into segments; `BUCKETS` is DDP's own.
        messages: one a message, in the same order; None are the buckets of each iteration's plan.
        lanes: groups and streams; of a pipeline, of all its ranks; of DDP's buckets, process groups or devices.
        forward: where forward stops, in order.
        updates: what the optimizer does after backward, in order; none where it updates before use.
        needed: parameters before the computation of whose gradient it waits, or launches.
        filled: parameters whose gradient's hook copies it into a message.
        buffers_lane: number of the lane of module buffers; None is the one whose turn it is.
        layers_lane: of what layers wait for; None where they wait for nothing.
    """

    schedule: Schedule
    messages: tuple[PlannedMessage, ...] | None
    lanes: tuple[Lane, ...]
    forward: tuple[ForwardWait, ...]
    updates: tuple[OptimizerUpdate, ...]
    needed: frozenset[int]
    filled: frozenset[int]
    buffers_lane: int | None = None
    layers_lane: int | None = None

    @classmethod
    def of_buckets(cls, parameters: int, lanes: int) -> Scheduled:
        """Return DDP's own buckets, of a model of so many parameters, on so many process groups or devices."""
        world = tuple((WORLD, str(number)) for number in range(lanes))
        return cls(BUCKETS, None, world, (), (WHOLE_UPDATE,), frozenset(), frozenset(range(parameters)))

    @property
    def by_plan(self) -> bool:
        """Whether its messages are the buckets of each iteration's plan."""
        return self.messages is None


class Launches:
    """Says what to launch at each point that a rank passes, and what to wait for before it: what its queue says.

    Args:
        queue: of the messages; `begin` begins its next iteration.
        planned: message of each number.
        ids: of the messages, for errors.
        parameters: how many the model has.

    Attributes:
        planned: as given.
    """

    __slots__ = ("_gradients", "_ids", "_queue", "planned")

    def __init__(
        self, queue: LaunchQueue[Point], planned: Sequence[PlannedMessage], ids: Sequence[str], parameters: int
    ) -> None:
        self._queue, self.planned, self._ids = queue, planned, ids
        self._gradients = gradient_points(tuple(range(parameters)))

    def begin(self) -> list[PlannedMessage]:
        """Begin an iteration; return what to launch at its start."""
        return [self.planned[number] for number in self._queue.begin()]

    def reset(self, skipped: Collection[int]) -> None:
        """Forget what was passed and launched; messages of the numbers `skipped` are never launched."""
        self._queue.reset(skipped)

    def gradient(self, parameter: int, unused: Iterable[int] = ()) -> list[PlannedMessage]:
        """Announce a gradient, and before it those that will not come, in whose place zeros are sent.

        Returns:
            What to launch, in order.
        """
        came = self._queue.mark_passed(*(self._gradients[index] for index in unused)) if unused else []
        came += self._queue.mark_passed(self._gradients[parameter])
        return [self.planned[number] for number in came]

    def mark_passed(self, *points: Point) -> list[PlannedMessage]:
        """Announce points; return what to launch, in order."""
        return [self.planned[number] for number in self._queue.mark_passed(*points)]

    def take_waits(self, *points: Point) -> list[PlannedMessage]:
        """Return what must have ended before `points` are passed, in order.

        Raises:
            PlanError: a message that stands behind another which is not possible yet: a rank would wait for ever.
        """
        waited = self._queue.take_waits(*points)
        if held := [number for number in waited if self._queue.is_held(number)]:
            before = self._ids[self._queue.next_of(held[0])]
            what = f"{points[0]} waits for it, and it for {before!r} before it, which is not possible yet"
            place = f"message {self._ids[held[0]]!r}"
            raise PlanError(what, place=place, remedy="put it first, or on another stream")
        return [self.planned[number] for number in waited]
