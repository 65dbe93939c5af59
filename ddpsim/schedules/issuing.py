"""When a message of a schedule may be launched, and for which a rank waits: the rule that both packages drive."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ddpsim.schedules.message import Message
from ddpsim.schedules.points import Kind, Point
from ddpsim.schedules.schedule import Schedule

Lane = tuple[str, str]
"""A group and a stream, whose messages are launched in the order of the schedule."""


class IssueQueue:
    """Launches a schedule's messages in its order: `LaunchQueue`'s rule for messages of any kind.

    A message is *possible* when the points it comes after have been passed, and launched when every message before it
    of its group and stream has been launched too: all ranks launch a group's messages in one order, in whatever order
    gradients come. That the messages it waits for have ended (`Message.after_messages`) is for the caller to see to,
    where its backend does not run them one after the other anyway.

    The caller announces each point that it passes, once an iteration, and asks before each point that it might have to
    wait at.

    Args:
        schedule: its messages, cut into segments or not.
    """

    __slots__ = (
        "_blocking", "_came", "_head", "_iteration", "_lanes", "_left", "_listening", "_messages", "_numbers",
        "_possible",
    )  # fmt: skip

    def __init__(self, schedule: Schedule) -> None:
        self._messages = schedule.messages
        self._iteration = 0
        self._left = [set(message.after) for message in self._messages]
        self._came = [0] * len(self._messages)
        self._possible: list[deque[bool]] = [deque() for _ in self._messages]
        self._listening: dict[Point, list[int]] = {}
        self._lanes: dict[Lane, list[int]] = {}
        self._blocking: dict[Point, list[int]] = {}
        self._numbers = {message.id: number for number, message in enumerate(self._messages)}
        for number, message in enumerate(self._messages):
            for point in self._left[number]:
                self._listening.setdefault(point, []).append(number)
            self._lanes.setdefault((message.group, message.stream), []).append(number)
        self._head = dict.fromkeys(self._lanes, 0)

    def begin(self) -> list[Message]:
        """Begin an iteration; return the messages to launch at its start, in order: those that come after nothing."""
        self._iteration += 1
        return self._launch([number for number, message in enumerate(self._messages) if not message.after])

    def resume(self, iteration: int) -> None:
        """Go on as if `iteration` iterations had been passed, each of them to its end."""
        self._iteration = iteration
        self._came = [iteration] * len(self._messages)

    def passed(self, *points: Point) -> list[Message]:
        """Announce that `points` have been passed; return the messages to launch now, in order."""
        complete = []
        for point in points:
            for number in self._listening.get(point, ()):
                left = self._left[number]
                left.discard(point)
                if not left:
                    left.update(self._messages[number].after)
                    complete.append(number)
        return self._launch(complete) if complete else []

    def waits(self, *points: Point) -> list[Message]:
        """Return the messages that must have ended before `points` are passed, and forget that they block them."""
        numbers = sorted({number for point in points for number in self._blocking.pop(point, ())})
        return [self._messages[number] for number in numbers]

    def missing(self) -> list[int]:
        """Return the gradients, ascending, for want of which messages of this iteration could not become possible."""
        late = (left for came, left in zip(self._came, self._left, strict=True) if came < self._iteration)
        return sorted(
            {p.parameter for left in late for p in left if p.kind is Kind.GRADIENT and p.parameter is not None}
        )

    def held(self, message: Message) -> bool:
        """Return whether `message` is possible, but waits for one before it of its group and stream."""
        return any(self._possible[self._numbers[message.id]])

    def next_of(self, message: Message) -> Message:
        """Return the message that its group and stream have to launch next."""
        lane = (message.group, message.stream)
        return self._messages[self._lanes[lane][self._head[lane]]]

    def _launch(self, possible: Iterable[int]) -> list[Message]:
        lanes: dict[Lane, None] = {}
        for number in possible:
            message = self._messages[number]
            self._came[number] = self._iteration
            sent = self._iteration % message.every == 0
            self._possible[number].append(sent)
            lanes[message.group, message.stream] = None
            if sent:
                for point in message.blocks:
                    self._blocking.setdefault(point, []).append(number)
        return [self._messages[number] for lane in lanes for number in self._advance(lane)]

    def _advance(self, lane: Lane) -> list[int]:
        order, launched = self._lanes[lane], []
        while self._possible[number := order[self._head[lane]]]:
            if self._possible[number].popleft():
                launched.append(number)
            self._head[lane] = (self._head[lane] + 1) % len(order)
        return launched
