"""What a pattern of transfers between any two ranks asks of a backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.transport import Connection
from ddpsim.network.fairness import LinkId


class RankPaths(Protocol):
    """Finds the ways between ranks of a placement in which every node has links of its own."""

    @property
    def backend(self) -> str:
        """`nccl` or `gloo`."""

    @property
    def protocol(self) -> str:
        """How the bytes are sent."""

    @property
    def streams_per_group(self) -> int:
        """Collectives in flight a process group."""

    @property
    def calibration(self) -> Calibration:
        """The constants in force."""

    @property
    def capacities(self) -> Mapping[LinkId, float]:
        """Bytes per second of every link on a way asked for so far."""

    def start_s(self, size_bytes: int) -> float:
        """Return the time before the first transfer of a message of `size_bytes`."""

    def connection(self, source: int, target: int) -> Connection:
        """Return the way from one rank to another."""
