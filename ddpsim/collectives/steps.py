"""Carries out a schedule transfer by transfer on the network: the judge of the fluid form."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import simpy

from ddpsim.collectives.network.fluid import Demand, Network
from ddpsim.collectives.schedules import ChannelSchedule, Connection, Steps, refuse_too_many


def carry_out(network: Network, steps: Steps) -> simpy.Event:
    """Start all lanes after the launch; the event succeeds when every transfer of each has arrived."""
    refuse_too_many(steps.transfers)
    env = network.env
    done = simpy.Event(env)
    left = len(steps.lanes)
    network.add(steps.capacities)

    def lane_done() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.succeed()

    def launch(_: simpy.Event) -> None:
        for lane in steps.lanes:
            _LaneRun(network, lane, lane_done).start()
        if not steps.lanes:
            done.succeed()

    simpy.Timeout(env, steps.launch_s).callbacks.append(launch)
    return done


@dataclass(slots=True)
class _Connection:
    """A connection: it sends in order, `window` transfers under way, one of them on the links."""

    connection: Connection
    todo: deque[int] = field(default_factory=deque)
    under_way: int = 0
    on_links: deque[int] = field(default_factory=deque)
    demands: dict[int, Demand] = field(default_factory=dict)


class _LaneRun:
    def __init__(self, network: Network, lane: ChannelSchedule, finished: Callable[[], None]) -> None:
        self._network, self._lane, self._finished = network, lane, finished
        self._transfers = lane.schedule.transfers
        self._waiting = [len(transfer.after) for transfer in self._transfers]
        self._dependents: list[list[int]] = [[] for _ in self._transfers]
        self._pairs: dict[tuple[int, int], _Connection] = {}
        self._left = len(self._transfers)
        for number, transfer in enumerate(self._transfers):
            for earlier in transfer.after:
                self._dependents[earlier].append(number)
            self._pair(number).todo.append(number)

    def start(self) -> None:
        for pair in self._pairs.values():
            self._advance(pair)

    def _pair(self, number: int) -> _Connection:
        transfer = self._transfers[number]
        key = (transfer.source, transfer.target)
        if key not in self._pairs:
            self._pairs[key] = _Connection(self._lane.connections[key])
        return self._pairs[key]

    def _advance(self, pair: _Connection) -> None:
        while pair.todo and pair.under_way < self._lane.window and not self._waiting[pair.todo[0]]:
            number = pair.todo.popleft()
            pair.under_way += 1
            if pair.connection.latency_s > 0:
                timeout = simpy.Timeout(self._network.env, pair.connection.latency_s, number)
                timeout.callbacks.append(lambda event: self._queue(pair, event.value))
            else:
                self._queue(pair, number)

    def _queue(self, pair: _Connection, number: int) -> None:
        pair.on_links.append(number)
        if len(pair.on_links) == 1:
            self._send(pair)

    def _send(self, pair: _Connection) -> None:
        transfer = self._transfers[pair.on_links[0]]
        chunks = transfer.stop - transfer.start
        if chunks not in pair.demands:
            size_bytes = chunks * self._lane.chunk_bytes
            connection = pair.connection
            pair.demands[chunks] = Demand(
                0.0,
                size_bytes,
                connection.loads,
                connection.rate_limit,
                self._lane.weight * connection.weight,
                host_limit=connection.host_limit,
            )
        sent = self._network.transfer(pair.demands[chunks])
        if sent.callbacks is None:
            raise RuntimeError("a transfer may not be over before it is waited for")
        sent.callbacks.append(lambda _: self._finish_send(pair))

    def _finish_send(self, pair: _Connection) -> None:
        number = pair.on_links.popleft()
        pair.under_way -= 1
        self._left -= 1
        if pair.on_links:
            self._send(pair)
        for dependent in self._dependents[number]:
            self._waiting[dependent] -= 1
            if not self._waiting[dependent]:
                self._advance(self._pair(dependent))
        self._advance(pair)
        if not self._left:
            self._finished()
