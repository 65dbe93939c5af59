"""What it takes of a rank to confer on the order of gradients, before a forward."""

from __future__ import annotations

from dataclasses import dataclass

from ddpsim.operations import Operation


@dataclass(frozen=True, slots=True)
class Conferring:
    """Conferring is a message among all ranks, and work of the host before and after it.

    Attributes:
        operation, size_bytes: the message.
        host_s: of the predictor and the consensus.
        rebuild_s: of building the buckets anew; 0 where they stay.
    """

    operation: Operation
    size_bytes: int
    host_s: float
    rebuild_s: float
