"""Collectives in flight beside each other: a small one takes a least time there, for its threads and its bytes wait."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from ddpsim.operations import Operation
from ddpsim.simulation.costs import Costs
from ddpsim.simulation.rendezvous import BUFFERS, Launch


class Crowd:
    """A crowd is what is on the wire of a job, on all its process groups.

    What begins beside others takes `pair_s` at least, for threads are woken in turn, and beside one whose bytes lie in
    the links' queues `behind_s`, though no longer than that one would by itself. Both are of an allreduce; another
    operation takes as much less as it has fewer steps.

    Args:
        env: the simulation.
        costs: that have those times.
        ranks: of the job.
        alone_s: what an operation of so many bytes takes with nothing in flight.
        steps: of a launch, where process groups are of fewer ranks; None takes all for those of the job.
    """

    def __init__(
        self,
        env: simpy.Environment,
        costs: Costs,
        ranks: int,
        alone_s: Callable[[int, Operation], float],
        steps: Callable[[Launch], int] | None = None,
    ) -> None:
        self._env, self._costs, self._ranks, self._alone_s = env, costs, ranks, alone_s
        self._steps = steps or (lambda launch: Operation(launch.operation).steps(ranks))
        self._flying: dict[Launch, float] = {}
        self._felt = ranks > 1 and max(costs.pair_s, costs.behind_s) > 0

    def around(self, launch: Launch, ended: simpy.Event) -> simpy.Event:
        """Return when `launch`, whose bytes have `ended` as they would if wires alone counted, has ended."""
        if not self._felt:
            return ended
        least_s = self._least_s(launch)
        done = ended & self._env.timeout(least_s) if least_s > 0 else ended
        operation = Operation.BROADCAST if launch.operation == BUFFERS else launch.operation
        self._flying[launch] = self._alone_s(launch.size_bytes, operation)

        def leave(_: simpy.Event) -> None:
            del self._flying[launch]

        assert done.callbacks is not None
        done.callbacks.append(leave)
        return done

    def _least_s(self, launch: Launch) -> float:
        if not self._flying:
            return 0.0
        whole = Operation.ALLREDUCE.steps(self._ranks)
        # A broadcast of buffers is a tree.
        buffers = launch.operation == BUFFERS
        steps = (self._ranks - 1).bit_length() if buffers else self._steps(launch)
        least_s = max(self._costs.pair_s, min(self._costs.behind_s, max(self._flying.values())))
        return least_s * min(1.0, steps / whole)
