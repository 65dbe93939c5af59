"""Demands, transfers and whole transports whose collectives take some factor of their time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ddpsim.collectives.network.fairness import Demand
from ddpsim.collectives.schedules import Connection, Steps
from ddpsim.collectives.transport import AlgorithmChoice, Transport
from ddpsim.common.operation import Operation


def scale_demand(demand: Demand, factor: float) -> Demand:
    """Return `demand` with latency, stalls and bytes on links `factor` times what they are."""
    return replace(
        demand,
        latency_s=demand.latency_s * factor,
        stall_s=demand.stall_s * factor,
        loads={link: load * factor for link, load in demand.loads.items()},
        rate_limit=demand.rate_limit / factor,
        host_limit=demand.host_limit / factor,
    )


def fit_demand(demand: Demand, alone_s: float, wanted_s: float) -> Demand:
    """Return `demand`, which alone takes `alone_s`, so changed that it takes `wanted_s`.

    What is too long is taken from its latency first, then from its stalls: the bytes on links are known, and beside
    others in flight they must not move faster than the links.
    """
    over_s = max(0.0, alone_s - wanted_s)
    latency_s = max(0.0, demand.latency_s - over_s)
    stall_s = max(0.0, demand.stall_s - max(0.0, over_s - demand.latency_s))
    left_s = alone_s - (demand.latency_s - latency_s) - (demand.stall_s - stall_s)
    return scale_demand(replace(demand, latency_s=latency_s, stall_s=stall_s), wanted_s / left_s)


def fit_steps(steps: Steps, demand: Demand, corrected: Demand) -> Steps:
    """Return `steps`, the transfers of `demand`, with launch, latencies and bytes changed as in `corrected`."""
    launch = corrected.latency_s / demand.latency_s if demand.latency_s else 1.0
    latency = corrected.stall_s / demand.stall_s if demand.stall_s else launch
    size = next((corrected.loads[link] / load for link, load in demand.loads.items()), 1.0)
    return replace(_scale_transfers(steps, latency, size), launch_s=steps.launch_s * launch)


def scale_steps(steps: Steps, factor: float, latency: float = 1.0) -> Steps:
    """Return `steps` that take `factor` times as long, what passes without bytes on links `latency` times that."""
    moved = _scale_transfers(steps, factor * latency, factor)
    return replace(moved, launch_s=steps.launch_s * factor * latency)


def _scale_transfers(steps: Steps, latency: float, size: float) -> Steps:
    def scaled(connection: Connection) -> Connection:
        loads = {link: load * size for link, load in connection.loads.items()}
        limits = connection.rate_limit / size, connection.host_limit / size
        return Connection(connection.latency_s * latency, loads, *limits, connection.weight)

    lanes = (replace(lane, connections={k: scaled(c) for k, c in lane.connections.items()}) for lane in steps.lanes)
    return replace(steps, lanes=tuple(lanes))


@dataclass(frozen=True, slots=True)
class TransportAround(Transport):
    """A transport around `inner` that keeps its choices, links and constants; a subclass changes times."""

    inner: Transport

    def __getattr__(self, name: str) -> Any:
        """Return backend, constants and links as of the transport inside."""
        return getattr(self.inner, name)

    def choice(self, size_bytes: int, operation: Operation = Operation.ALLREDUCE) -> AlgorithmChoice:
        """Return how an operation of `size_bytes` is carried out."""
        return self.inner.choice(size_bytes, operation)

    def transfers(self, operation: Operation, size_bytes: int) -> int:
        """Return of how many single transfers an operation is."""
        return self.inner.transfers(operation, size_bytes)

    def threads_share(self, demand: Demand) -> float:
        """Return the share of threads as of the transport inside."""
        return self.inner.threads_share(demand)


@dataclass(frozen=True, slots=True)
class ScaledTransport(TransportAround):
    """`inner`, each collective of which takes `factor` of its size times as long: an end of a band.

    Attributes:
        latency: factor, beside that, on the time in which none of its bytes are on links.
    """

    factor: Callable[[int], float]
    latency: float = 1.0

    def demand(self, operation: Operation, size_bytes: int) -> Demand:
        """Return the demand inside, scaled."""
        demand = scale_demand(self.inner.demand(operation, size_bytes), self.factor(size_bytes))
        if self.latency == 1:
            return demand
        return replace(demand, latency_s=demand.latency_s * self.latency, stall_s=demand.stall_s * self.latency)

    def time_s(self, operation: Operation, size_bytes: int) -> float:
        """Return the scaled time."""
        time_s = self.inner.time_s(operation, size_bytes)
        if self.latency != 1:
            demand = self.inner.demand(operation, size_bytes)
            time_s -= (1 - self.latency) * (demand.latency_s + demand.stall_s)
        return time_s * self.factor(size_bytes)

    def steps(self, operation: Operation, size_bytes: int) -> Steps:
        """Return the transfers inside, scaled."""
        return scale_steps(self.inner.steps(operation, size_bytes), self.factor(size_bytes), self.latency)
