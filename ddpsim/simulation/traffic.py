"""What a rank launches and waits for in an iteration: DDP's buckets, or the messages of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ddpsim.bucketing import LaunchQueue
from ddpsim.errors import PlanError
from ddpsim.operations import Operation
from ddpsim.schedules.issuing import IssueQueue
from ddpsim.schedules.message import Message
from ddpsim.schedules.points import BACKWARD_END, Kind, Point, points
from ddpsim.simulation.reduction import Sends


@dataclass(frozen=True, slots=True)
class Parcel:
    """A parcel is what a rank launches at once: a bucket of DDP's, or a message of a schedule.

    Attributes:
        number: place in the plan or the schedule.
        size_bytes: of the whole message.
        parameters: registration indices.
        sends: its messages, with what is computed for them.
        write_back_s: device time of copying it out when it has ended.
        operation: what is done with it.
        lane: the communicator's queue; None where process groups take turns.
        after: numbers of the parcels that must have ended before it begins.
        fill_s: device time of copying into it when it is launched.
        host_awaits: whether the host waits for those before it launches it; else what carries it out does.
        delay_s: how long it waits before it begins, of itself.
        blocking: whether the host waits for its end where it launches it.
    """

    number: int
    size_bytes: int
    parameters: tuple[int, ...]
    sends: Sends
    write_back_s: float
    operation: Operation = Operation.ALLREDUCE
    lane: int | None = None
    after: tuple[int, ...] = ()
    fill_s: float = 0.0
    host_awaits: bool = False
    delay_s: float = 0.0
    blocking: bool = False


class Traffic(Protocol):
    """Says what to launch at each point that a rank passes, and what to wait for before it."""

    def begin(self) -> list[Parcel]:
        """Begin an iteration; return what to launch at its start."""

    def unused(self, parameters: Iterable[int]) -> list[Parcel]:
        """Announce gradients that will not come, at the first one that did; return what to launch."""

    def gradient(self, parameter: int) -> list[Parcel]:
        """Announce a gradient; return what to launch, in order."""

    def passed(self, *points: Point) -> list[Parcel]:
        """Announce other points; return what to launch, in order."""

    def waits(self, *points: Point) -> list[Parcel]:
        """Return what must have ended before `points` are passed, in order."""


class BucketTraffic:
    """DDP's: `LaunchQueue` says which bucket may leave, and the end of backward waits for all that did.

    Args:
        queue: fresh, of one iteration.
        parcel: makes the parcel of a bucket.
    """

    __slots__ = ("_launched", "_parcel", "_queue")

    def __init__(self, queue: LaunchQueue, parcel: Callable[[int], Parcel]) -> None:
        self._queue, self._parcel = queue, parcel
        self._launched: list[Parcel] = []

    def begin(self) -> list[Parcel]:
        """Return nothing: a bucket has gradients."""
        return []

    def unused(self, parameters: Iterable[int]) -> list[Parcel]:
        """Mark gradients that will not come ready."""
        return self._launch(self._queue.start(parameters))

    def gradient(self, parameter: int) -> list[Parcel]:
        """Mark a gradient ready."""
        return self._launch(self._queue.ready(parameter))

    def passed(self, *points: Point) -> list[Parcel]:
        """Return nothing: DDP launches at gradients alone."""
        return []

    def waits(self, *points: Point) -> list[Parcel]:
        """Return the launched buckets at the end of backward."""
        launched: list[Parcel] = []
        if BACKWARD_END in points:
            launched, self._launched = self._launched, launched
        return launched

    def _launch(self, numbers: list[int]) -> list[Parcel]:
        parcels = [self._parcel(number) for number in numbers]
        self._launched += parcels
        return parcels


class ScheduleTraffic:
    """A schedule's messages, by `IssueQueue`; a rank keeps it from iteration to iteration."""

    __slots__ = ("_gradients", "_of", "_queue")

    def __init__(self, queue: IssueQueue, of: dict[str, Parcel], parameters: int) -> None:
        self._queue, self._of = queue, of
        self._gradients = points(Kind.GRADIENT, tuple(range(parameters)))

    def begin(self) -> list[Parcel]:
        """Begin an iteration."""
        return self._parcels(self._queue.begin())

    def unused(self, parameters: Iterable[int]) -> list[Parcel]:
        """Let messages go without the gradients that will not come: zeros take their place."""
        return self.passed(*(self._gradients[index] for index in parameters))

    def gradient(self, parameter: int) -> list[Parcel]:
        """Announce a gradient."""
        return self._parcels(self._queue.passed(self._gradients[parameter]))

    def passed(self, *points: Point) -> list[Parcel]:
        """Announce points."""
        return self._parcels(self._queue.passed(*points))

    def waits(self, *points: Point) -> list[Parcel]:
        """Return what must have ended before `points`.

        Raises:
            PlanError: a message that stands behind another which is not possible yet: a rank would wait for ever.
        """
        waited = self._queue.waits(*points)
        if held := [message for message in waited if self._queue.held(message)]:
            before = self._queue.next_of(held[0])
            what = f"{points[0]} waits for it, and it for {before.id!r} before it, which is not possible yet"
            raise PlanError(what, place=f"message {held[0].id!r}", remedy="put it first, or on another stream")
        return self._parcels(waited)

    def _parcels(self, messages: Iterable[Message]) -> list[Parcel]:
        return [self._of[message.id] for message in messages]
