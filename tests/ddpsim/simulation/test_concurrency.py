"""Small collectives beside others take the least time that was measured there, large ones none more."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import simpy

from ddpsim.collectives.calibration import Calibration
from ddpsim.common.operation import Operation
from ddpsim.simulation.contention import ConcurrentCollectives
from ddpsim.simulation.ddp_costs import Costs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.graph import BUFFERS, Collective
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from tests.ddpsim.simulation.builders import workload

What = Operation | Literal["buffers"]
PAIR_S, BEHIND_S, RATE = 2e-3, 5e-3, 1e9
CROWDED = Calibration.priors("gloo").with_values(
    {"gloo.ddp.pair_s": PAIR_S, "gloo.ddp.behind_s": BEHIND_S}, source="test"
)


def ends(ranks: int, *sent: tuple[float, int, What]) -> list[float]:
    """Return how long each of `sent` takes: when it begins, its bytes and what is done with them."""
    env = simpy.Environment()

    def steps(collective: Collective) -> int:
        return (ranks - 1).bit_length() if collective.operation == BUFFERS else collective.carried_as.steps(ranks)

    costs = Costs.of("gloo", CROWDED)
    concurrent = ConcurrentCollectives(env, costs, ranks, lambda each: each.size_bytes / RATE, steps)
    taken: list[float] = []

    def send(number: int, begin_s: float, size_bytes: int, operation: What) -> simpy.events.ProcessGenerator:
        yield env.timeout(begin_s)
        launched = Collective(size_bytes, operation, 0, number)
        yield concurrent.wait_for_end(launched, env.timeout(size_bytes / RATE))
        taken[number] = env.now - begin_s

    taken += [0.0] * len(sent)
    for number, each in enumerate(sent):
        env.process(send(number, *each))
    env.run()
    return taken


ALLREDUCE = Operation.ALLREDUCE


def test_alone_nothing_takes_longer() -> None:
    assert ends(2, (0.0, 1000, ALLREDUCE), (1.0, 1000, ALLREDUCE)) == pytest.approx([1e-6, 1e-6])


def test_beside_a_small_one_and_behind_a_large_one_there_is_a_least_time() -> None:
    small, large = 1000, 20_000_000
    assert ends(2, (0.0, small, ALLREDUCE), (0.0, small, ALLREDUCE)) == pytest.approx([1e-6, PAIR_S])
    assert ends(2, (0.0, large, ALLREDUCE), (1e-3, small, ALLREDUCE)) == pytest.approx([0.02, BEHIND_S])
    assert ends(2, (0.0, large, ALLREDUCE), (1e-3, large, ALLREDUCE)) == pytest.approx([0.02, 0.02])
    # One that takes 3 ms by itself cannot be waited for longer.
    assert ends(2, (0.0, 3_000_000, ALLREDUCE), (1e-3, small, ALLREDUCE)) == pytest.approx([3e-3, 3e-3])


@pytest.mark.parametrize(
    ("ranks", "operation", "share"),
    [(2, BUFFERS, 1 / 2), (8, BUFFERS, 3 / 14), (8, Operation.REDUCE_SCATTER, 1 / 2), (8, ALLREDUCE, 1)],
)
def test_fewer_steps_wait_less(ranks: int, operation: What, share: float) -> None:
    _, found = ends(ranks, (0.0, 20_000_000, ALLREDUCE), (1e-3, 4, operation))
    assert found == pytest.approx(share * BEHIND_S)


def test_a_step_of_many_small_messages_is_theirs() -> None:
    source = workload(gradients=40, size=64)
    placement = load_topology("loopback").place(1, 2)
    given = Options(backend="gloo", scheme="naive")
    found, computed = (
        summarise(simulate(source, placement, replace(given, comm=comm), CROWDED)).iteration_s
        for comm in ("real", "noop")
    )
    # Two are in flight at a time, so that one ends every half of the least time; each is launched under those before.
    assert found - computed == pytest.approx(40 * PAIR_S / 2, rel=0.1)
