"""Fusion buffers and packs, held to hand computations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddpsim.bucketing import Parameter
from ddpsim.common.errors import PlanError
from ddpsim.common.operation import Operation
from ddpsim.schedules.fused import Horovod, MultiWorkerOptions, agreement_bytes, horovod, multiworker_mirrored
from ddpsim.schedules.schedule import check
from ddpsim.schedules.setup import SchemeInputs
from ddpsim.simulation.engine import simulate
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from ddpsim.trace.metrics import summarise
from tests.ddpsim.simulation.builders import workload


def setup_of(*ready_s: float, sizes: tuple[int, ...] = (), blocking: bool = False, wire_s: float = 0.0) -> SchemeInputs:
    """Return parameters of 10 elements, or of `sizes`, whose gradients are ready at these times."""
    count = len(ready_s) or len(sizes)
    sizes = sizes or (10,) * count
    return SchemeInputs(
        parameters=[Parameter(f"p{i}", (size,)) for i, size in enumerate(sizes)],
        buckets=[tuple(range(count))[::-1]],
        world_size=2,
        ready_s=dict(enumerate(ready_s)),
        time_s=lambda operation, size: wire_s if operation is Operation.ALLREDUCE else 0.0,
        blocking=blocking,
    )


def sent(setup: SchemeInputs, given: Horovod) -> list[tuple[tuple[int, ...], float]]:
    made = horovod(setup, given)
    check(made, setup.parameters, setup.world_size)
    return [(message.parameters, round(message.delay_s, 9)) for message in made]


def test_a_cycle_takes_what_has_come_since_the_last_in_buffers_of_what_fits() -> None:
    given = Horovod(fusion=80, cycle=1.0)
    # Three come before the tick at 1, of which two fit a buffer of 80 bytes; the one at 2.5 waits for that at 3.
    assert sent(setup_of(2.5, 0.75, 0.5, 0.25), given) == [((3, 2), 0.5), ((1,), 0.25), ((0,), 0.5)]


def test_operations_that_block_make_the_next_cycle_late_and_larger() -> None:
    given = Horovod(fusion=1000, cycle=1.0)
    times = (2.9, 1.5, 0.5)
    assert sent(setup_of(*times, wire_s=2.0), given) == [((2,), 0.5), ((1,), 0.5), ((0,), pytest.approx(0.1))]
    assert sent(setup_of(*times, blocking=True, wire_s=2.0), given) == [((2,), 0.5), ((1, 0), pytest.approx(0.1))]


def agreeing(setup: SchemeInputs, given: Horovod, each_s: float = 0.25) -> list[tuple[tuple[int, ...], float]]:
    asked = []

    def control_s(library: str, size_bytes: int) -> float:
        asked.append((library, size_bytes))
        return each_s

    found = sent(replace(setup, control_s=control_s), given)
    assert asked == [("mpi", 8)]
    return found


def test_ranks_agree_in_each_cycle_before_its_buffers_leave() -> None:
    times = (2.5, 0.75, 0.5, 0.25)
    plain = sent(setup_of(*times), Horovod(fusion=80, cycle=1.0))
    later = [(buffer, delay_s + 0.25) for buffer, delay_s in plain]
    assert agreeing(setup_of(*times), Horovod(fusion=80, cycle=1.0, agree="mpi")) == later
    assert sent(setup_of(*times), Horovod(fusion=80, cycle=1.0, agree=0.25)) == later


def test_a_cycle_is_no_shorter_than_the_agreement_in_it() -> None:
    # Ticks are at 0, 2, 4: what comes at 0.5 is taken at 2 and leaves at 4, as does what comes at 2.5 at 6.
    found = agreeing(setup_of(2.5, 0.5), Horovod(cycle=1.0, agree="mpi"), each_s=2.0)
    assert found == [((1,), 3.5), ((0,), 3.5)]


def test_an_agreement_has_a_bit_a_tensor_and_three_in_words_of_eight_bytes() -> None:
    assert [agreement_bytes(count) for count in (0, 61, 62, 125, 126, 398)] == [8, 8, 16, 16, 24, 56]


def test_an_agreement_that_nobody_can_time_is_refused() -> None:
    with pytest.raises(PlanError, match="do not agree on it by gloo; leave `agree` out"):
        horovod(setup_of(1.0), Horovod(agree="gloo"))


def test_a_simulated_step_is_longer_by_an_agreement_of_its_machine_s_hosts() -> None:
    source, place = workload(device="V100", size=4_000_000), load_topology("p3.16xlarge").place(2)
    steps = [
        summarise(simulate(source, place, Options(scheme=f"horovod{given}"))).iteration_s
        for given in ("", ":agree=mpi", ":agree=gloo")
    ]
    none_s, mpi_s, gloo_s = steps
    assert none_s < mpi_s < gloo_s


def test_without_a_cycle_each_gradient_leaves_as_it_comes() -> None:
    assert sent(setup_of(3.0, 2.0, 1.0), Horovod(cycle=0.0)) == [((2,), 0.0), ((1,), 0.0), ((0,), 0.0)]


def test_where_nobody_knows_when_gradients_come_buffers_are_filled_in_their_order() -> None:
    found = sent(setup_of(sizes=(10, 30, 10, 10)), Horovod(fusion=100))
    assert found == [((3, 2), 0.0), ((1,), 0.0), ((0,), 0.0)]


def test_a_buffer_holds_one_type() -> None:
    mixed = [Parameter("a", (10,)), Parameter("b", (10,), dtype="float16"), Parameter("c", (10,))]
    setup = SchemeInputs(parameters=mixed, buckets=[(2, 1, 0)], world_size=2)
    assert [message.parameters for message in horovod(setup, Horovod())] == [(2, 0), (1,)]


@pytest.mark.parametrize(
    ("pack", "expected"),
    [(None, [(3, 2, 1, 0)]), (1, [(3,), (2,), (1,), (0,)]), (40, [(3, 2), (1,), (0,)]), (80, [(3, 2, 1), (0,)])],
)
def test_packs_end_with_the_tensor_that_makes_them_larger(pack: int | None, expected: list[tuple[int, ...]]) -> None:
    # 40, 40, 120 and 40 bytes, the last parameter's first.
    setup = setup_of(sizes=(10, 30, 10, 10))
    assert [message.parameters for message in multiworker_mirrored(setup, MultiWorkerOptions(pack))] == expected


def test_simulated_buffers_start_at_cycles() -> None:
    source = workload(gradients=8, backward=0.08)
    options = Options(backend="gloo", scheme="horovod:cycle=25ms")
    trace = simulate(source, load_topology("loopback").place(1, 2), options)
    first = trace.iterations[0]
    backward_s = first.gradients[0].ready_s - 0.01
    planned = [25e-3, 50e-3, 75e-3, 100e-3]
    assert [len(bucket.parameters) for bucket in first.buckets] == [2, 3, 2, 1]
    for bucket, tick in zip(first.buckets, planned, strict=True):
        # Copies of the gradients before make a simulated gradient come a little later than it was planned.
        assert bucket.started_s - backward_s == pytest.approx(tick, abs=5e-3)
