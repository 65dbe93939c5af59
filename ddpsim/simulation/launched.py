"""A collective as one rank launches it: what it carries, on which lane, and where in that lane's order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddpsim.operations import Operation

BUFFERS: Literal["buffers"] = "buffers"
"""DDP's broadcast of rank 0's buffers, which has a cost of its own."""

CollectiveKey = tuple[str, int, int]
"""Operation, bytes and lane: what tells one collective's time from another's."""


@dataclass(slots=True, eq=False)
class Collective:
    """One rank's part in one message among all ranks of a group.

    Attributes:
        size_bytes: of the message.
        operation: what is done with it.
        lane: number of the process group, or group and stream, that it is launched on.
        number: place among the messages of its lane, equal on all ranks.
    """

    size_bytes: int
    operation: Operation | Literal["buffers"]
    lane: int
    number: int

    @property
    def key(self) -> CollectiveKey:
        """What tells its time from another's."""
        return str(self.operation), self.size_bytes, self.lane

    @property
    def carried_as(self) -> Operation:
        """The operation of its process group: buffers are broadcast."""
        return Operation.BROADCAST if self.operation == BUFFERS else Operation(self.operation)
