from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsim import Calibration, calibrate, load_topology, load_workload
from ddpsim.calibrating.measured import MeasuredRow, MeasuredTable
from ddpsim.collectives import schedules
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.execute import Collectives
from ddpsim.collectives.mpi.transport import ALGORITHMS, MpiTransport, pick_algorithm
from ddpsim.common.errors import InputError, TopologyError
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from tests.ddpsim.collectives import closed_forms
from tests.ddpsim.collectives.groups import group_on
from tests.ddpsim.collectives.shaped import shaped


def collectives(ranks: int, algorithm: str = "auto", fidelity: str = "flow") -> Collectives:
    placement = shaped(ranks, "0.1ms")
    return group_on(placement, "mpi", algorithm=algorithm, fidelity=fidelity)


@pytest.mark.parametrize(
    ("ranks", "size_bytes", "algorithm"),
    [
        # coll_tuned_decision_fixed.c of the 4.1 series, communicators below 4, 8, 16, 32, 64, 128, 256 and 512 ranks.
        (2, 4095, "recursive-doubling"),
        (2, 4096, "ring"),
        (3, 8192, "recursive-doubling"),
        (3, 16384, "ring"),
        (2, 65536, "segmented-ring"),
        (2, 262144, "rabenseifner"),
        (4, 8191, "recursive-doubling"),
        (7, 8192, "rabenseifner"),
        (8, 8, "recursive-doubling"),
        (15, 64 * MIB, "rabenseifner"),
        (16, 4095, "recursive-doubling"),
        (31, 4096, "rabenseifner"),
        (32, 4096, "rabenseifner"),
        (64, 262143, "recursive-doubling"),
        (64, 262144, "rabenseifner"),
        (128, 131071, "reduce-broadcast"),
        (255, 131072, "recursive-doubling"),
        (256, 4095, "reduce-broadcast"),
        (511, 4096, "rabenseifner"),
        (512, 2048, "recursive-doubling"),
        (2048, 2048, "segmented-ring"),
        (4096, 2048, "segmented-ring"),
        (5000, 20000, "recursive-doubling"),
        # Fewer elements than ranks: a ring is not made.
        (2, 4, "recursive-doubling"),
        (16, 32, "recursive-doubling"),
    ],
)
def test_open_mpi_s_choice(ranks: int, size_bytes: int, algorithm: str) -> None:
    if size_bytes // 4 < ranks and algorithm == "segmented-ring":
        algorithm = "recursive-doubling"
    assert pick_algorithm(ranks, size_bytes) == algorithm


@given(ranks=st.integers(1, 40))
def test_recursive_doubling_gives_everybody_the_sum(ranks: int) -> None:
    schedule = schedules.recursive_doubling(ranks)
    sent: list[set[int]] = []
    state = [{rank} for rank in range(ranks)]
    for transfer in schedule.transfers:
        came = [sent[number] for number in transfer.after]
        carried = {transfer.source}.union(*came)
        assert sum(map(len, came)) + 1 == len(carried)  # each contribution once
        sent.append(carried)
        state[transfer.target] = state[transfer.target] | carried if transfer.reduce else carried
    assert all(each == set(range(ranks)) for each in state)


@given(ranks=st.integers(2, 40), reduce=st.booleans())
def test_a_binomial_tree_reaches_everybody_in_log2_rounds(ranks: int, reduce: bool) -> None:
    operation = Operation.REDUCE if reduce else Operation.BROADCAST
    (lane,) = collectives(ranks).transport.steps(operation, 1024).lanes
    transfers = lane.schedule.transfers
    ends = {t.source for t in transfers} if reduce else {t.target for t in transfers}
    assert ends == set(range(1, ranks))
    assert len(transfers) == ranks - 1
    depth = list[int]()
    for transfer in transfers:
        depth.append(1 + max((depth[number] for number in transfer.after), default=0))
    assert max(depth) <= math.ceil(math.log2(ranks))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_large_messages_take_the_closed_forms(ranks: int) -> None:
    size = 256 * MIB
    found = collectives(ranks)
    rate = min(found.transport.capacities.values()) * found.calibration["mpi.efficiency.network"]
    expected = closed_forms.halving_doubling_s(ranks, size, 0.0, 1 / rate)
    assert found.simulate_s(size) == pytest.approx(expected, rel=0.02)
    doubled = collectives(ranks, "recursive-doubling").simulate_s(size)
    assert doubled == pytest.approx(closed_forms.recursive_doubling_s(ranks, size, 0.0, 1 / rate), rel=0.02)
    ring = collectives(ranks, "ring").simulate_s(size)
    assert ring == pytest.approx(schedules.ring_s(ranks, size, 0.0, 1 / rate), rel=0.02)


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("size_bytes", [4096, 300_000, 8 * MIB])
def test_the_flow_takes_what_its_steps_take(operation: Operation, ranks: int, size_bytes: int) -> None:
    flow, steps = (collectives(ranks, fidelity=fidelity) for fidelity in ("flow", "steps"))
    told = flow.estimate_s(size_bytes, operation)
    assert flow.simulate_s(size_bytes, operation) == pytest.approx(told, rel=1e-6)
    assert steps.simulate_s(size_bytes, operation) == pytest.approx(told, rel=0.1)


def test_a_long_message_waits_for_the_receiver_s_answer() -> None:
    placement = shaped(2, "0.1ms")
    for latency in (1.0, 3.0):
        constants = Calibration.priors("mpi").with_values({"mpi.round_trips": latency}, source="t")
        transport = MpiTransport(placement, constants)
        short, long = (transport.demand(Operation.ALLREDUCE, size).latency_s for size in (100_000, 400_000))
        # Two steps of one way each, or of a round trip more; a ring sends halves.
        way_s = latency * 200e-6  # two ports
        launched = transport.calibration["mpi.launch_s"] + 2 * transport.calibration["mpi.step_s"]
        assert short == pytest.approx(launched + 2 * way_s)
        assert long == pytest.approx(launched + 2 * 3 * way_s)


def test_what_microbench_measured_is_fitted() -> None:
    machine = load_topology("loopback")
    rows = [(4096, 140e-6), (65536, 180e-6), (1 << 20, 500e-6), (4 << 20, 1475e-6), (16 << 20, 10.7e-3)]
    table = MeasuredTable("t", [MeasuredRow(size, s, f"t:{n}") for n, (size, s) in enumerate(rows)], 2, 1)
    table = replace(table, header={"backend": "mpi"})
    report = calibrate([table], machine)
    assert report.calibration.backend == "mpi"
    fitted = MpiTransport(machine.place(1, 2), report.calibration)
    assert fitted.allreduce_s(4096) == pytest.approx(140e-6, rel=0.2)
    corrected = group_on(machine.place(1, 2), "mpi", calibration=report.calibration)
    assert corrected.estimate_s(4 << 20) == pytest.approx(1475e-6, rel=0.01)


def test_what_is_not_modelled_is_refused() -> None:
    placement = load_topology("loopback").place(1, 2)
    with pytest.raises(InputError, match=r"MPI has no algorithm 'tree'; use auto, recursive-doubling, ring"):
        MpiTransport(placement, options=CollectiveOptions(algorithm="tree"))
    with pytest.raises(TopologyError, match="MPI on 512 ranks; 256 at most"):
        MpiTransport(load_topology("dgx-1v").place(64))
    assert set(ALGORITHMS) >= {pick_algorithm(ranks, size) for ranks in (2, 5, 300) for size in (64, 10**4, 10**7)}


def test_a_step_over_mpi_is_predicted_with_one_collective_at_a_time() -> None:
    machine, model = load_topology("lab-flat"), load_workload("resnet50")
    over = {
        backend: predict(Job(model, machine, nodes=4, options=Options(backend=backend)), band=False)
        for backend in ("mpi", "gloo")
    }
    assert over["mpi"].trace.backend == "mpi"
    buckets = over["mpi"].summary.buckets
    assert all(later.started_s >= earlier.finished_s for earlier, later in itertools.pairwise(buckets))
    assert over["mpi"].step_s == pytest.approx(over["gloo"].step_s, rel=0.2)
