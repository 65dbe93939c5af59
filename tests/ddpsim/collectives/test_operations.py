"""Operations other than an allreduce: flow beside single transfers, what torch's gloo does, what NCCL believes."""

from __future__ import annotations

import pytest
import simpy

from ddpsim.common.errors import InputError, TopologyError
from ddpsim.common.operation import Operation
from ddpsim.common.units import MIB
from ddpsim.topology.graph import Placement
from ddpsim.topology.spec import load_topology
from tests.ddpsim.collectives import closed_forms
from tests.ddpsim.collectives.groups import group_on
from tests.ddpsim.collectives.shaped import shaped

HALVES = [Operation.REDUCE_SCATTER, Operation.ALL_GATHER]
OTHERS = [operation for operation in Operation if operation is not Operation.ALLREDUCE]
RINGS = [operation for operation in OTHERS if operation is not Operation.ALL_TO_ALL]
WIRE = 1.25e8 / 1.046
"""Bytes per second of payload on a link of 1 Gbit/s."""


def seconds(
    placement: Placement, operation: Operation, size_bytes: int, *, backend: str = "nccl", fidelity: str = "flow"
) -> float:
    return group_on(placement, backend, fidelity=fidelity, isolated=False).simulate_s(size_bytes, operation)


@pytest.mark.parametrize("operation", OTHERS)
@pytest.mark.parametrize("size_bytes", [8192, MIB, 64 * MIB])
@pytest.mark.parametrize(("machine", "nodes"), [("dgx-1v", 1), ("dgx-h100", 2), ("4xv100-pcie", 1), ("p3.8xlarge", 3)])
def test_flow_equals_steps_over_nccl(machine: str, nodes: int, size_bytes: int, operation: Operation) -> None:
    placement = load_topology(machine).place(nodes)
    flow = seconds(placement, operation, size_bytes)
    # A chain of LL passes on lines, of which the steps show pieces.
    assert flow == pytest.approx(seconds(placement, operation, size_bytes, fidelity="steps"), rel=0.04)
    assert flow == pytest.approx(seconds(placement, operation, size_bytes, fidelity="closed"), rel=1e-9)


@pytest.mark.parametrize("operation", OTHERS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_flow_equals_steps_over_gloo(ranks: int, operation: Operation) -> None:
    for size_bytes in (MIB, 32 * MIB):
        placement = shaped(ranks, "0.1ms")
        flow = seconds(placement, operation, size_bytes, backend="gloo")
        steps = seconds(placement, operation, size_bytes, backend="gloo", fidelity="steps")
        assert flow == pytest.approx(steps, rel=0.04)
        closed = seconds(placement, operation, size_bytes, backend="gloo", fidelity="closed")
        assert flow == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize("size_bytes", [8192, 16 * MIB, 1024 * MIB])
def test_both_halves_of_an_allreduce_take_as_long_and_together_a_start_more(size_bytes: int) -> None:
    placement = load_topology("4xv100-pcie").place(1)
    both = group_on(placement, algorithm="ring", isolated=False)
    scatter, gather = (both.estimate_s(size_bytes, half) for half in HALVES)
    assert scatter == gather
    protocols = {both.choice(size_bytes, each).protocol for each in (*HALVES, Operation.ALLREDUCE)}
    start_s = both.calibration[f"nccl.start.{protocols.pop()}_s"]
    assert not protocols
    assert scatter + gather - start_s == pytest.approx(both.estimate_s(size_bytes), rel=0.05)


def test_a_chain_takes_its_closed_form() -> None:
    placement, size_bytes = load_topology("4xv100-pcie").place(1), 256 * MIB
    queued = group_on(placement, isolated=False)
    demand, get = queued.transport.demand(Operation.REDUCE, size_bytes), queued.calibration
    channels = queued.choice(size_bytes, Operation.REDUCE).channels
    rate = demand.unshared_rate(queued.transport.capacities)
    wanted = closed_forms.chain_s(
        4, size_bytes // channels // (1 << 19), size_bytes, get["nccl.ring.hop.pcie.simple_s"], 1 / rate
    )
    assert queued.estimate_s(size_bytes, Operation.REDUCE) == pytest.approx(
        get["nccl.start.simple_s"] + wanted, rel=1e-3
    )


@pytest.mark.parametrize(
    ("operation", "ranks", "size_bytes", "measured"),
    [
        (Operation.REDUCE_SCATTER, 2, 8 * MIB, 1.06),
        (Operation.REDUCE_SCATTER, 3, 6 * MIB, 1.40),
        (Operation.REDUCE_SCATTER, 4, 8 * MIB, 1.61),
        (Operation.ALL_GATHER, 2, 8 * MIB, 0.76),
        (Operation.ALL_GATHER, 3, 6 * MIB, 0.74),
        (Operation.ALL_GATHER, 4, 8 * MIB, 0.80),
        (Operation.REDUCE, 2, 8 * MIB, 1.27),
        (Operation.REDUCE, 3, 6 * MIB, 1.34),
        (Operation.REDUCE, 4, 8 * MIB, 1.51),
        (Operation.REDUCE, 8, 4 * MIB, 1.77),
        (Operation.BROADCAST, 2, 8 * MIB, 1.01),
        (Operation.BROADCAST, 3, 6 * MIB, 2.0),
        (Operation.BROADCAST, 4, 8 * MIB, 2.63),
        (Operation.BROADCAST, 8, 4 * MIB, 4.91),
        (Operation.SENDRECV, 2, 8 * MIB, 2.0),
        (Operation.SENDRECV, 3, 6 * MIB, 1.08),
        (Operation.SENDRECV, 4, 8 * MIB, 1.05),
        (Operation.ALL_TO_ALL, 2, 12 * MIB, 1.03),
        (Operation.ALL_TO_ALL, 3, 12 * MIB, 0.68),
        (Operation.ALL_TO_ALL, 4, 4 * MIB, 0.95),
        (Operation.ALL_TO_ALL, 8, 4 * MIB, 0.98),
    ],
)
def test_gloo_moves_what_torchs_operations_do(
    operation: Operation, ranks: int, size_bytes: int, measured: float
) -> None:
    """Medians of `reduce_scatter_tensor`, `all_gather_into_tensor`, `reduce`, `broadcast`, `isend` with `irecv`,
    and `all_to_all_single`.

    Torch 2.13 over links of 200 Mbit/s, in times of the message on the wire.
    """
    placement = shaped(ranks, rate="200mbit")
    wire_s = size_bytes / (WIRE / 5)
    assert seconds(placement, operation, size_bytes, backend="gloo") / wire_s == pytest.approx(measured, rel=0.09)


def test_two_ranks_of_gloo_send_one_after_the_other_and_more_at_once() -> None:
    two, three = (seconds(shaped(ranks), Operation.SENDRECV, 32 * MIB, backend="gloo") for ranks in (2, 3))
    assert two == pytest.approx(2 * three, rel=0.01)


def test_a_reduce_scatter_over_gloo_takes_longer_than_an_allreduce() -> None:
    for size_bytes in (4096, 32 * MIB):
        whole, half = (
            seconds(shaped(4), each, size_bytes, backend="gloo")
            for each in (Operation.ALLREDUCE, Operation.REDUCE_SCATTER)
        )
        assert half > whole


def test_other_operations_run_on_rings_whatever_algorithm_allreduces_are_forced_to() -> None:
    tree = group_on(load_topology("dgx-a100").place(2), algorithm="tree")
    assert {tree.choice(size, each).algorithm for size in (1024, MIB, 256 * MIB) for each in RINGS} == {"ring"}
    assert tree.choice(MIB).algorithm == "tree"


def test_patterns_have_halves_and_no_sends() -> None:
    placement = load_topology("p3.8xlarge").place(2)
    pattern = group_on(placement, algorithm="halving-doubling", isolated=False)
    for half in HALVES:
        assert pattern.estimate_s(MIB, half) < pattern.estimate_s(MIB)
        stepped = group_on(placement, algorithm="halving-doubling", fidelity="steps").simulate_s(64 * MIB, half)
        assert stepped == pytest.approx(pattern.estimate_s(64 * MIB, half), rel=0.05)
    for operation in (Operation.SENDRECV, Operation.ALL_TO_ALL):
        with pytest.raises(InputError, match=f"{operation} by halving-doubling"):
            pattern.estimate_s(MIB, operation)


def test_an_all_to_all_takes_its_closed_form_on_one_link_a_rank() -> None:
    """Each rank of a lab has one link: 2/3 of 32 MiB leave by it, after one handshake."""
    placement = shaped(3, "0.1ms")
    alone = group_on(placement, "gloo", isolated=False)
    get = alone.calibration
    handshake_s = get["gloo.step_s"] + get["gloo.round_trips"] * 2 * 1e-4
    wanted = closed_forms.exchange_pairs_s(3, 32 * MIB, handshake_s, 1 / WIRE) + get["gloo.launch_s"]
    assert alone.estimate_s(32 * MIB, Operation.ALL_TO_ALL) == pytest.approx(wanted, rel=2e-3)


def test_an_all_to_all_of_nodes_waits_for_the_network_and_a_lone_node_does_not() -> None:
    """Of 16 GPUs in two nodes each sends half of its message to the other node, whose eight NICs carry 50 GB/s each."""
    size = 256 * MIB
    one, two = (group_on(load_topology("dgx-h100").place(n), isolated=False) for n in (1, 2))
    bytes_s = size / 2 / (two.estimate_s(size, Operation.ALL_TO_ALL) - two.estimate_s(0, Operation.ALL_TO_ALL))
    assert 0.75 * 50e9 < bytes_s < 50e9
    assert one.estimate_s(size, Operation.ALL_TO_ALL) < two.estimate_s(size, Operation.ALL_TO_ALL) / 3


def test_an_all_to_all_shares_links_with_what_else_is_sent() -> None:
    placement, size = shaped(3), 32 * MIB
    both = group_on(placement, "gloo", env=simpy.Environment(), isolated=False)
    alone_s = both.estimate_s(size, Operation.ALL_TO_ALL)
    ends = [both.run(Operation.ALL_TO_ALL, size), both.run(Operation.ALL_TO_ALL, size)]
    both.env.run(simpy.AllOf(both.env, ends))
    assert both.env.now == pytest.approx(2 * alone_s, rel=0.02)


def test_an_all_to_all_of_too_many_ranks_is_refused() -> None:
    many = group_on(load_topology("dgx-h100").place(64))
    with pytest.raises(TopologyError, match="an all-to-all of 512 ranks; give a group of 256 ranks at most"):
        many.estimate_s(MIB, Operation.ALL_TO_ALL)


@pytest.mark.parametrize("operation", list(Operation))
def test_one_rank_takes_a_launch(operation: Operation) -> None:
    for backend, machine in (("nccl", "dgx-1v"), ("gloo", "loopback")):
        for fidelity in ("flow", "steps", "closed"):
            alone = seconds(load_topology(machine).place(1, 1), operation, MIB, backend=backend, fidelity=fidelity)
            assert 0 < alone < 1e-2
