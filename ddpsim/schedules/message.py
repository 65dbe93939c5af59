"""A message of a schedule: what one collective carries, what must have happened before it, and what waits for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.schedules.chunks import Chunks
from ddpsim.schedules.points import WAITING, Point

WORLD = "world"
"""The process group of all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One operation of a process group in each iteration.

    Its `blocks` are points that a rank does not pass before the message has ended there: the next time it comes to
    them after the message became possible. So a message after `gradient:3` that blocks `forward:3` holds up the next
    iteration's forward, and one after `forward:0` that blocks `forward:3` this one's.

    Attributes:
        id: its name, of which a schedule has one.
        op: what is done with it.
        size_bytes: as nccl-tests counts: the whole message of an all-gather or reduce-scatter, all parts together.
        parameters: registration indices, in the order in which their bytes lie in the message; empty for bytes that
            belong to no parameter.
        part: the half-open range of bytes of those that it carries; None is all of them.
        after: points that must have been passed, and
        after_messages: ids of messages that must have ended, before it may begin.
        blocks: points that wait for it, and for nothing else it stands for.
        group: name of the process group: `world`, or one of the schedule's.
        stream: messages of one group and stream begin in the order of the schedule; other streams go beside it.
        priority: the lower, the more urgent; what plans an order beforehand reads it.
        segment_bytes: most bytes of one collective; a larger message is cut, so that a more urgent one can pass.
        every: it is sent in every so-manieth iteration, the first being number 1.
        in_place: whether it is sent from, and received, where its tensors lie.
        delay_s: how long it waits once all that comes before it has happened.
        passes: over its parameters' bytes that a rank makes once it has ended, each of a copy's time.
        launch_passes: such that it makes when it launches it.
        chunks: which part of a bucket it carries, where ranks choose it in each iteration.
        blocking: whether the host that launches it waits for its end there, and takes it in.
        sparse: whether it carries the rows that were touched, with their indices; its size is then what is expected.
        from_host_bytes, to_host_bytes: that a rank copies to its device before it, and to the host once it has ended.

    Raises:
        PlanError: a size, a segment, a part or a number of iterations out of range, or a point nothing can wait at.
    """

    id: str
    op: Operation
    size_bytes: int
    parameters: tuple[int, ...] = ()
    part: tuple[int, int] | None = None
    after: tuple[Point, ...] = ()
    after_messages: tuple[str, ...] = ()
    blocks: tuple[Point, ...] = ()
    group: str = WORLD
    stream: str = "main"
    priority: int = 0
    segment_bytes: int | None = None
    every: int = 1
    in_place: bool = False
    passes: float = 0.0
    launch_passes: float = 0.0
    chunks: Chunks | None = None
    delay_s: float = 0.0
    blocking: bool = False
    sparse: bool = False
    from_host_bytes: int = 0
    to_host_bytes: int = 0

    def __post_init__(self) -> None:
        place = f"message {self.id!r}"
        if self.size_bytes < 0:
            raise PlanError(f"{self.size_bytes} is no size", place=place, remedy="give 0 bytes or more")
        if self.segment_bytes is not None and self.segment_bytes < 1:
            raise PlanError(f"a segment of {self.segment_bytes} bytes", place=place, remedy="give 1 byte or more")
        if self.every < 1:
            raise PlanError(f"sent every {self.every} iterations", place=place, remedy="give 1 or more")
        if self.part is not None and not 0 <= self.part[0] < self.part[1]:
            raise PlanError(
                f"bytes {self.part[0]} to {self.part[1]} are no part", place=place, remedy="begin below end"
            )
        for point in self.blocks:
            if point.kind not in WAITING:
                remedy = f"let it block one of {', '.join(WAITING)}"
                raise PlanError(f"nothing can wait at {point}", place=place, remedy=remedy)

    def segments(self, align_bytes: int = 1) -> list[Message]:
        """Return the messages it is cut into, each of at most `segment_bytes`; itself where it is small enough.

        Args:
            align_bytes: where it may be cut: at multiples of the size of an element.
        """
        most = self.segment_bytes
        if most is None or self.size_bytes <= most:
            return [self]
        begin = self.part[0] if self.part else 0
        step = max(align_bytes, most // align_bytes * align_bytes)
        cuts = [min(k * step, self.size_bytes) for k in range(math.ceil(self.size_bytes / step) + 1)]
        return [
            replace(
                self, id=f"{self.id}/{k}", size_bytes=end - start, part=(begin + start, begin + end), segment_bytes=None
            )
            for k, (start, end) in enumerate(itertools.pairwise(cuts))
        ]


def cut(messages: Sequence[Message], align_bytes: int = 1) -> list[Message]:
    """Return `messages` with each cut into its segments; what waited for a message waits for all its segments."""
    pieces = {message.id: message.segments(align_bytes) for message in messages}
    names = {name: tuple(piece.id for piece in parts) for name, parts in pieces.items()}
    return [
        replace(piece, after_messages=tuple(new for old in piece.after_messages for new in names.get(old, (old,))))
        for message in messages
        for piece in pieces[message.id]
    ]
