"""When a message may be launched: the one rule, for the buckets of a plan and for the messages of any schedule."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from ddpsim.common.errors import DdpsimError


class MarkedTwiceError(DdpsimError):
    """The error of a gradient that is marked ready twice in one backward."""

    def __init__(self, index: object) -> None:
        self.index = index
        super().__init__(f"gradient {index} was marked ready twice in one backward")


class _Ordered(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


Point = TypeVar("Point", bound=_Ordered)
"""What a rank announces that it has passed: the gradient of a registration index, or a schedule's own points."""


class LaunchQueue(Generic[Point]):
    """Strict order in every lane: torch's rule for launching buckets, without torch, for messages of any kind.

    A message is *possible* when all points that it comes after have been passed, and launched when every message before
    it of its lane has been launched too: all ranks launch a lane's messages in one order, in whatever order gradients
    come. DDP's buckets are the messages of one lane, each of which comes after its gradients.

    The caller announces each point that it passes, once an iteration, launches what it is told to in the order
    returned, and asks before each point at which it might have to wait. Messages are named by their number.

    Args:
        after: by message, in launch order, the points that it comes after: of a bucket, its parameters.
        skipped: messages that are never launched; the order closes over them.
        lanes: by message, its lane; None is one lane for all.
        every: by message, in every how-manieth iteration it is sent; None is each.
        blocks: by message, the points that wait for it; None is none.
    """

    __slots__ = (
        "_after", "_blocking", "_blocks", "_came", "_coming", "_every", "_head", "_iteration", "_lane", "_left",
        "_listening", "_orders", "_possible", "_seen", "_skipped",
    )  # fmt: skip

    def __init__(
        self,
        after: Sequence[Collection[Point]],
        skipped: Collection[int] = (),
        *,
        lanes: Sequence[Hashable] | None = None,
        every: Sequence[int] | None = None,
        blocks: Sequence[Sequence[Point]] | None = None,
    ) -> None:
        count = len(after)
        lanes = lanes or [None] * count
        places = {lane: place for place, lane in enumerate(dict.fromkeys(lanes))}
        self._lane = [places[lane] for lane in lanes]
        self._orders: list[list[int]] = [[] for _ in places]
        for number, lane in enumerate(self._lane):
            self._orders[lane].append(number)
        self._every, self._blocks = every or [1] * count, blocks or [()] * count
        self._after = [frozenset(points) for points in after]
        self._left = [set(points) for points in after]
        self._listening: dict[Point, list[int]] = {}
        for number, points in enumerate(self._after):
            for point in points:
                self._listening.setdefault(point, []).append(number)
        self._possible: dict[int, list[bool]] = {}
        self._blocking: dict[Point, list[int]] = {}
        self._seen: set[Point] = set()
        self.reset(skipped)

    def reset(self, skipped: Collection[int] = ()) -> None:
        """Start anew: every point is still to be passed, no message is launched."""
        for left, points in zip(self._left, self._after, strict=True):
            if len(left) < len(points):
                left.update(points)
        self._head = [0] * len(self._orders)
        self._came, self._iteration = [-1] * len(self._after), 0
        self._coming = len(self._after) - len(skipped)
        self._seen.clear()
        self._blocking.clear()
        self._skipped = frozenset(skipped)
        self._possible = {number: [False] for number in skipped}
        if skipped:
            for lane in range(len(self._orders)):
                self._advance(lane)

    def begin(self) -> list[int]:
        """Begin an iteration; return the messages to launch at its start, in order: those that come after nothing."""
        self._iteration += 1
        self._coming = len(self._after) - len(self._skipped)
        self._seen.clear()
        return self._launch([number for number, points in enumerate(self._after) if not points])

    def resume(self, iteration: int) -> None:
        """Go on as if `iteration` iterations had been passed, each of them to its end."""
        self._iteration = iteration
        self._came = [iteration] * len(self._after)

    def bucket_of(self, point: Point) -> int:
        """Return the first message that comes after `point`."""
        return self._listening[point][0]

    def mark_ready(self, point: Point) -> list[int]:
        """Announce a gradient; return the messages to launch now, in order.

        Raises:
            MarkedTwiceError: where it was announced before since the last `reset` or `begin`.
        """
        if point in self._seen:
            raise MarkedTwiceError(point)
        self._seen.add(point)
        complete = []
        for number in self._listening.get(point, ()):  # as `mark_passed`, without another call at every gradient
            left = self._left[number]
            left.discard(point)
            if not left:
                left.update(self._after[number])
                complete.append(number)
        return self._launch(complete) if complete else []

    def start(self, unused: Iterable[Point] = ()) -> list[int]:
        """Announce the gradients that will not come, at the first that does, as torch does; else as `mark_ready`."""
        return [number for point in unused for number in self.mark_ready(point)]

    def mark_passed(self, *points: Point) -> list[int]:
        """Announce that `points` have been passed; return the messages to launch now, in order."""
        complete = []
        for point in points:
            for number in self._listening.get(point, ()):
                left = self._left[number]
                left.discard(point)
                if not left:
                    left.update(self._after[number])
                    complete.append(number)
        return self._launch(complete) if complete else []

    def take_waits(self, *points: Point) -> list[int]:
        """Return the messages that must have ended before `points` are passed, and forget that they block them."""
        messages: set[int] = set()
        for point in points:
            messages.update(self._blocking.pop(point, ()))
        return sorted(messages)

    @property
    def launched_all(self) -> bool:
        """Whether every message of this iteration has been launched or skipped."""
        return self._coming <= 0 and not self._possible

    def find_missing(self) -> list[Point]:
        """Return the points, ascending, for want of which messages of this iteration could not become possible."""
        late = (number for number, came in enumerate(self._came) if came < self._iteration)
        return sorted({point for number in late if number not in self._skipped for point in self._left[number]})

    def is_held(self, number: int) -> bool:
        """Return whether a message is possible, but waits for one before it of its lane."""
        return any(self._possible.get(number, ()))

    def next_of(self, number: int) -> int:
        """Return the message that a message's lane has to launch next."""
        lane = self._lane[number]
        return self._orders[lane][self._head[lane]]

    def _launch(self, complete: Iterable[int]) -> list[int]:
        lanes: dict[int, None] = {}
        for number in complete:
            if number in self._skipped:
                continue
            self._came[number] = self._iteration
            self._coming -= 1
            sent = self._iteration % self._every[number] == 0
            self._possible.setdefault(number, []).append(sent)
            lanes[self._lane[number]] = None
            if sent:
                for point in self._blocks[number]:
                    self._blocking.setdefault(point, []).append(number)
        return [number for lane in lanes for number in self._advance(lane)]

    def _advance(self, lane: int) -> list[int]:
        # The head of a lane goes round: behind its last message comes the first of the next iteration. Messages may
        # become possible an iteration ahead of the head, each time once, so that `_possible` holds them in a queue by
        # message: False where it is skipped or not sent in that iteration, which moves the head on and launches
        # nothing.
        order, launched = self._orders[lane], []
        while coming := self._possible.get(number := order[self._head[lane]]):
            if coming.pop(0):
                launched.append(number)
            if not coming:
                del self._possible[number]
            self._head[lane] = (self._head[lane] + 1) % len(order)
        return launched
