from __future__ import annotations

from dataclasses import replace

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsim.collectives.calibration import Calibration, Curve, CurvePoint
from ddpsim.collectives.conditions import CollectiveOptions
from ddpsim.collectives.curve import Correction, CurveTransport
from ddpsim.collectives.execute import Collectives, make_transport
from ddpsim.collectives.gloo.transport import GlooTransport
from ddpsim.collectives.network.fairness import alone_s
from ddpsim.collectives.network.fluid import Network
from ddpsim.collectives.steps import carry_out
from ddpsim.common.errors import InputError, TopologyError
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.prediction.predict import predict
from ddpsim.simulation.job import Job
from ddpsim.simulation.jobs.simulated import Options
from ddpsim.topology.spec import load_topology
from tests.ddpsim.collectives.shaped import shaped
from tests.ddpsim.simulation.builders import workload
from tests.profile import examples

LOOPBACK = load_topology("loopback").place(1, 2)


@given(st.lists(st.floats(0.3, 3.0), min_size=2, max_size=8))
@settings(max_examples=examples(40), deadline=None)
def test_the_demand_of_a_corrected_transport_takes_the_corrected_time(factors: list[float]) -> None:
    inner = GlooTransport(LOOPBACK)
    points = tuple(CurvePoint(4096 * 4**k, f * inner.allreduce_s(4096 * 4**k)) for k, f in enumerate(factors))
    corrected = CurveTransport(inner, (Correction.of(Curve("x", 1, 2, points), inner),), start_s=1e-6)
    for size in (1024, 4096, 10_000, 262_144, 50_000_000):
        assert alone_s(corrected.allreduce(size), corrected.capacities) == pytest.approx(corrected.allreduce_s(size))
    for point in points:
        assert corrected.allreduce_s(point.size_bytes) == pytest.approx(point.time_s + 1e-6)


@given(shorter_by=st.floats(0.0, 0.99))
def test_what_a_model_takes_too_long_is_its_latency_before_its_bytes(shorter_by: float) -> None:
    placement = load_topology("lab-flat").place()
    priors = Calibration.priors("gloo")
    inner = GlooTransport(placement, priors.with_values({"gloo.launch_s": 5e-3}, source="test"))
    sizes = (1 << 20, 1 << 24)
    whole, latency_s = inner.allreduce(sizes[0]), inner.allreduce(sizes[0]).latency_s
    measured_s = inner.allreduce_s(sizes[0]) * (1 - shorter_by)
    points = (CurvePoint(sizes[0], measured_s), CurvePoint(sizes[1], inner.allreduce_s(sizes[1])))
    transport = CurveTransport(inner, (Correction.of(Curve("", 1, 1, points), inner),))
    found = transport.allreduce(sizes[0])
    assert alone_s(found, transport.capacities) == pytest.approx(measured_s, rel=1e-6)
    assert found.latency_s == pytest.approx(max(0.0, latency_s - shorter_by * inner.allreduce_s(sizes[0])), abs=1e-9)
    if shorter_by * inner.allreduce_s(sizes[0]) <= latency_s:
        assert found.loads == pytest.approx(dict(whole.loads))
    assert found.peak_load <= whole.peak_load * (1 + 1e-9)


@pytest.mark.parametrize("factor", [0.7, 0.95, 1.3])
@pytest.mark.parametrize("delay", ["0s", "2.5ms"])
def test_single_transfers_are_corrected_as_the_whole_is(factor: float, delay: str) -> None:
    inner = GlooTransport(shaped(4, delay))
    size = 25 * MIB
    points = (CurvePoint(size, factor * inner.allreduce_s(size)), CurvePoint(2 * size, inner.allreduce_s(2 * size)))
    transport = CurveTransport(inner, (Correction.of(Curve("", 1, 4, points), inner),))
    network = Network(simpy.Environment(), transport.capacities)
    network.env.run(carry_out(network, transport.steps(Operation.ALLREDUCE, size)))
    assert network.env.now == pytest.approx(transport.allreduce_s(size), rel=1e-9)
    of_model, corrected = (
        each.steps(Operation.ALLREDUCE, size).lanes[0].connections[0, 0] for each in (inner, transport)
    )
    spared_s = (1 - factor) * inner.allreduce_s(size)
    if 0 < spared_s < inner.allreduce(size).latency_s + inner.allreduce(size).stall_s:
        assert corrected.loads == pytest.approx(dict(of_model.loads))


def test_rows_of_one_process_for_all_gpus_lose_its_launches_where_each_has_its_own() -> None:
    placement = load_topology("dgx-1v").place(1)
    priors = Calibration.priors("nccl")
    slow = {"nccl.launch_s": 20e-6}
    whole = priors.with_values(slow, source="test")
    by_one = make_transport(placement, "nccl", whole, options=CollectiveOptions(isolated=False, gpus_per_process=8))
    sizes = (1024, 1 << 20, 1 << 28)
    points = tuple(CurvePoint(size, 1.25 * by_one.allreduce_s(size)) for size in sizes)
    curve = Curve(placement.topology.fingerprint(), 1, 8, points, gpus_per_process=8)
    calibration = replace(whole, curves=(curve,))
    same = make_transport(placement, "nccl", calibration, options=CollectiveOptions(isolated=False, gpus_per_process=8))
    own, model = (
        make_transport(placement, "nccl", each, options=CollectiveOptions(isolated=False))
        for each in (calibration, whole)
    )
    for size in sizes:
        assert same.allreduce_s(size) == pytest.approx(1.25 * by_one.allreduce_s(size))
        assert own.allreduce_s(size) == pytest.approx(1.25 * model.allreduce_s(size))
        assert alone_s(own.allreduce(size), own.capacities) == pytest.approx(own.allreduce_s(size))
    assert own.allreduce_s(1024) < same.allreduce_s(1024) / 2


def test_rows_of_a_forced_algorithm_correct_that_one_only() -> None:
    placement = load_topology("dgx-1v").place(2)
    priors = Calibration.priors("nccl")
    points = (CurvePoint(1024, 1.0), CurvePoint(1 << 20, 2.0))
    forced = replace(priors, curves=(Curve(placement.topology.fingerprint(), 2, 8, points, "ring"),))
    times = {
        name: [
            make_transport(placement, "nccl", c, options=CollectiveOptions(algorithm=name)).allreduce_s(1024)
            for c in (priors, forced)
        ]
        for name in ("auto", "tree", "ring")
    }
    assert times["auto"][0] == times["auto"][1]
    assert times["tree"][0] == times["tree"][1]
    assert times["ring"][1] == pytest.approx(1.0, rel=1e-3)


MACHINES = [("dgx-h100", 1), ("dgx-h100", 2), ("dgx-1v", 2), ("mi300x-8", 1), ("8xl40s-pcie", 1), ("g3.16xlarge", 1)]


@pytest.mark.parametrize("fidelity", ["flow", "closed", "steps"])
@pytest.mark.parametrize("algorithm", ["auto", "ring", "tree", "nvls", "nvls_tree"])
@pytest.mark.parametrize(("machine", "nodes"), MACHINES)
def test_a_measured_row_comes_back_as_measured(machine: str, nodes: int, algorithm: str, fidelity: str) -> None:
    topology = load_topology(machine)
    placement, priors = topology.place(nodes), Calibration.priors(topology.backend)
    options = CollectiveOptions(algorithm=algorithm, fidelity=fidelity, isolated=False)
    try:
        model = make_transport(placement, topology.backend, priors, options)
    except TopologyError:
        pytest.skip("no such algorithm there")
    sizes = [1 << 10, 1 << 16, 1 << 20] if fidelity == "steps" else [1 << 10, 1 << 20, 1 << 24, 1 << 26, 1 << 31]
    factors = [1.4, 0.6, 1.1, 0.9, 0.8]  # the second row falls below the first where latency rules
    operations = [each for each in Operation if algorithm == "auto" or each is Operation.ALLREDUCE]
    rows = {
        each: [f * model.time_s(each, size) for f, size in zip(factors, sizes, strict=False)] for each in operations
    }
    curves = tuple(
        Curve(
            topology.fingerprint(), nodes, placement.gpus_per_node, tuple(map(CurvePoint, sizes, times)), algorithm,
            operation=operation,
        )
        for operation, times in rows.items()
    )  # fmt: skip
    calibration = replace(priors, curves=curves)
    found = Collectives(None, placement, backend=topology.backend, calibration=calibration, options=options)
    for operation, times in rows.items():
        for size, measured_s in zip(sizes, times, strict=True):
            try:
                timed_s = found.simulate_s(size, operation)
            except InputError:  # more single transfers than are carried out
                continue
            assert timed_s == pytest.approx(measured_s, rel=1e-6), (operation, size)


@pytest.mark.parametrize(("machine", "nodes"), MACHINES)
def test_a_collective_alone_takes_as_one_flow_what_its_formula_says(machine: str, nodes: int) -> None:
    topology = load_topology(machine)
    for algorithm in ("auto", "ring", "tree", "nvls", "nvls_tree"):
        options = CollectiveOptions(algorithm=algorithm)
        try:
            transport = make_transport(topology.place(nodes), topology.backend, None, options)
        except TopologyError:
            continue
        for size in (1 << 10, 1 << 20, 1 << 24, 1 << 31):
            alone = alone_s(transport.allreduce(size), transport.capacities)
            assert alone == pytest.approx(transport.allreduce_s(size)), (algorithm, size)


@pytest.mark.parametrize("fidelity", ["flow", "closed", "steps"])
def test_a_bucket_of_a_row_takes_the_row_and_the_start_on_an_idle_stream(fidelity: str) -> None:
    machine, priors = load_topology("dgx-h100"), Calibration.priors("nccl")
    model = workload(device="H100", gradients=4, size=1 << 16)
    size = sum(each.size_bytes for each in model.parameters)
    curve = Curve(machine.fingerprint(), 2, 8, (CurvePoint(size // 2, 1e-3), CurvePoint(size, 0.9e-3)))
    options, calibration = Options(overlap="off", fidelity=fidelity), replace(priors, curves=(curve,))
    found = predict(Job(model, machine, nodes=2, options=options, calibration=calibration), band=False)
    [bucket] = found.summary.buckets
    assert bucket.finished_s - bucket.moving_s == pytest.approx(0.9e-3 + priors["nccl.isolated_s"], rel=1e-6)
