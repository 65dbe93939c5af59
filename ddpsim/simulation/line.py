"""Messages that are sent when they are there, one behind the other on their connections: gloo's sends and receives."""

from __future__ import annotations

from dataclasses import replace

import simpy

from ddpsim.collectives.execute import Collectives
from ddpsim.network.fairness import Demand
from ddpsim.network.fluid import Network
from ddpsim.operations import Operation
from ddpsim.simulation.processor import Process


class Line:
    """A line is the messages of one stream: while one is on the links, those behind it wait out their latency.

    Args:
        network: whose links they take.
        latency_s: from the moment at which both ends have posted a message to its first byte.
    """

    def __init__(self, network: Network, latency_s: float) -> None:
        self._network, self._latency_s = network, latency_s
        self._last: simpy.Event | None = None

    def send(self, demand: Demand) -> simpy.Event:
        """Send a message behind those before it; return the event of its end."""
        self._last = self._network.env.process(self._sent(demand, self._last))
        return self._last

    def _sent(self, demand: Demand, before: simpy.Event | None) -> Process:
        if self._latency_s > 0:
            yield self._network.env.timeout(self._latency_s)
        if before is not None and not before.processed:
            yield before
        yield self._network.transfer(replace(demand, latency_s=0.0))


def send_s(world: Collectives, ranks: int) -> float:
    """Return what a send over gloo takes before its bytes: a step of an allreduce that has hardly any."""
    steps = Operation.ALLREDUCE.steps(ranks)
    return world.estimate_s(ranks) / steps if steps else 0.0
