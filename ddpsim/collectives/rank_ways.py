"""What a pattern of transfers between any two ranks asks of a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.network.fairness import LinkId
from ddpsim.collectives.routes import PlacementLinks
from ddpsim.collectives.transport import Connection, Transport


class RankPaths(ABC):
    """Finds the ways between ranks of a placement in which every node has links of its own.

    Attributes:
        backend: `nccl` or `gloo`, by whose name its constants are called.
        protocol: how the bytes are sent.
        streams_per_group: collectives in flight a process group.
        calibration: the constants in force.
        capacities: bytes per second of every link on a way asked for so far.
    """

    backend: str
    protocol: str
    streams_per_group: int

    def __init__(self, wiring: PlacementLinks, calibration: Calibration) -> None:
        self.wiring, self.calibration = wiring, calibration
        self.capacities: dict[LinkId, float] = {}

    @abstractmethod
    def start_s(self, size_bytes: int) -> float:
        """Return the time before the first transfer of a message of `size_bytes`."""

    @abstractmethod
    def connection(self, source: int, target: int) -> Connection:
        """Return the way from one rank to another."""

    def constant(self, name: str) -> float:
        """Return the backend's constant of that name."""
        return self.calibration[f"{self.backend}.{name}"]

    def place(self, rank: int) -> tuple[int, str]:
        """Return the node of a rank, and its GPU there."""
        node, index, kind = self.wiring.placement.node_of(rank)
        return node, self.wiring.placement.gpus(kind)[index]


class TransportOverPaths(Transport):
    """A transport over the ways between ranks of a backend, whose constants and links it has."""

    hops: Mapping[str, float] = MappingProxyType({})

    def __init__(self, ways: RankPaths) -> None:
        self._ways, self.backend, self.calibration = ways, ways.backend, ways.calibration
        self.streams_per_group, self.capacities = ways.streams_per_group, ways.capacities
