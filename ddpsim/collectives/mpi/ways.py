"""Open MPI's ways between any two ranks: shared memory inside a machine, TCP by each node's first NIC between nodes."""

from __future__ import annotations

from dataclasses import replace

from ddpsim.collectives.calibration import Calibration
from ddpsim.collectives.host_paths import HostPaths
from ddpsim.collectives.routes import PlacementLinks
from ddpsim.collectives.transport import Connection

EAGER_BYTES = {True: 4096, False: 65536}
"""Bytes up to which a message is sent at once, inside a machine and between two: `btl_vader_eager_limit` and
`btl_tcp_eager_limit` of Open MPI 4.1.4 (`ompi_info --all`). A longer one waits until the receiver has answered."""


class MpiPaths(HostPaths):
    """Finds the ways of messages of a collective between ranks of a placement.

    Args:
        message_bytes: of the longest of them, which decides whether they wait for the receiver.
        summed: share of what arrives that is added, at `mpi.reduce.bandwidth`.
    """

    backend = "mpi"
    streams_per_group = 1

    def __init__(
        self, wiring: PlacementLinks, calibration: Calibration, message_bytes: float = 0.0, summed: float = 0.5
    ) -> None:
        HostPaths.__init__(self, wiring, calibration)
        self._message_bytes = message_bytes
        self._rate = self.constant("reduce.bandwidth") / summed

    def connection(self, source: int, target: int) -> Connection:
        """Return the way from one rank to another: a message's own, after the receiver's answer where it is long."""
        hop = self.hop(source, target)
        per_node = self.wiring.placement.gpus_per_node
        inside = source // per_node == target // per_node
        latency_s = self.constant("step_s") + self.round_trip_s(hop) / 2
        if self._message_bytes > EAGER_BYTES[inside]:
            latency_s += self.round_trip_s(hop)
        return replace(HostPaths.connection(self, source, target), latency_s=latency_s, rate_limit=self._rate)
