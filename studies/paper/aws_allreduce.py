"""One allreduce of the AWS post's as a point."""

from __future__ import annotations

from dataclasses import dataclass

BYTES = 25_000_000
"""Of the post's allreduce, a full bucket."""


@dataclass(frozen=True, slots=True)
class Allreduce:
    """An allreduce of `BYTES` by NCCL's ring, on a machine with nothing beside."""

    topology: str

    def __str__(self) -> str:
        return f"allreduce of {BYTES / 1e6:.0f} MB on {self.topology}"

    def answer(self) -> dict[str, float]:
        """Return its time in seconds."""
        from ddpsim.collectives.conditions import CollectiveOptions
        from ddpsim.collectives.execute import make_transport
        from ddpsim.common.operation import Operation
        from ddpsim.topology.spec import load_topology

        placement = load_topology(self.topology).place()
        transport = make_transport(placement, "nccl", None, CollectiveOptions(algorithm="ring"))
        return {"seconds": transport.time_s(Operation.ALLREDUCE, BYTES)}
